"""What deploy/quickstart, deploy/report.py and deploy/compare_reports.py are made of."""
