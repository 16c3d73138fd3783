"""What is done about lost, late, shed, suspended or doubted answers: found, ordered and followed here."""
