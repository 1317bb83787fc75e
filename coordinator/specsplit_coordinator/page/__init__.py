"""The page that shows the cluster at work: its server, the file itself, and the values that it draws."""
