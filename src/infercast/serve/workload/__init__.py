"""What users send: requests, their arrivals and lengths, and recorded traces."""
