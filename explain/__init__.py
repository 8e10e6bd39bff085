"""What a person looks at: traces of attention, their numbers and their pictures."""
