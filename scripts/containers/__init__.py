"""The images, the compose files and the group of ranks of Kubernetes, proven on a docker engine of their own: `.ci/containers`."""
