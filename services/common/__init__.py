"""What every server needs: lifecycle, errors on the wire, telemetry."""
