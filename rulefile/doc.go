// Package rulefile reads rules as people write them: YAML in, a
// [github.com/weirhq/weir.RuleSet] out, or every mistake at once with file,
// line, column and what to write instead.
//
// [Load] reads a file and [Parse] reads text. Both accept a document whole or
// not at all, so that rules in force are never replaced by half of a change.
//
// [SetTier], [PutRule], [SetOverride], [SetList] and their like change one thing
// in the text of a document and leave every other byte, comments among them, as
// it was: they splice at the places that the parser found, read the result
// again, and return an error rather than a text that means anything else.
// [Compare] says what a change does that is probably not meant.
//
// The language is a small part of YAML: maps, lists, and text on one line.
// What YAML has beyond that (anchors, aliases, merge keys, tags, block text,
// several documents) is refused by name. None of it helps to say what a limit
// is, and some of it lets a short file unfold into a huge one.
//
// Input isn't trusted. A document is at most [MaxSize] long. The text is checked
// first (source.go). The parser (parse.go) makes a tree of it (tree.go), and bounds how
// deep and how large that is. The tree is decoded (decode.go, rule.go, numbers.go, amount.go, price.go).
// What the words mean together is checked by [github.com/weirhq/weir.Compile], whose
// findings are brought back to the line that they are about (locate.go).
package rulefile
