"""The Grafana dashboards as code: `python -m scripts.dashboards` writes their JSON to deploy/grafana/dashboards."""
