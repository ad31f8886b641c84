"""What deploy/quickstart and deploy/report.py are made of."""
