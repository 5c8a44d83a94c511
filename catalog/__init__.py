"""What is known: identities, layouts, the kinds of fact, Datalog rules, replicas."""
