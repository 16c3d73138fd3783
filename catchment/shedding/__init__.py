"""Load shedding: which records of an overloaded stream are sampled, and what is then owed."""
