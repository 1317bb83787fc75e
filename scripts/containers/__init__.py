"""The images and the compose file, proven on a docker engine of their own: `.ci/containers`."""
