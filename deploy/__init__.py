"""What operators hang on the wall: a dashboard for Grafana, alert rules for Prometheus, a Helm chart."""
