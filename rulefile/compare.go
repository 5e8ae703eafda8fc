package rulefile

// Compare returns what the change from one document to another does that is
// probably not meant, each with its place in the new one.
func Compare(old, new *File) []Problem { return nil }
