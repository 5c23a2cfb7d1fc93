"""Durable actors and workflows for Django."""
