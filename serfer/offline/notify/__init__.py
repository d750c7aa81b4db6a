"""Notifications of the end of an offline job: signed webhooks, SQS and SNS."""
