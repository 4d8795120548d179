"""The nouns that rooms and engines share: Step, Outcome, Run and its manifest."""
