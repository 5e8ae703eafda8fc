// Package rulefile reads rules as people write them. It turns YAML into a
// [github.com/weirhq/weir.RuleSet], or returns every mistake at once, with file, line, column and what
// to write instead.
//
// [Load] reads a file and [Parse] reads text. Both accept a document whole or not at all, so rules in
// force are never replaced by half of a change.
//
// [SetTier], [PutRule], [SetOverride], [SetList] and similar functions change one thing in the text of a
// document and leave every other byte as it was, including comments. They change the text at the places
// that the parser found, and parse the result again. If the new document doesn't mean
// exactly what it should, they return an error. [Compare] returns changes that are probably mistakes.
//
// The language is a small part of YAML: maps, lists, and text on one line. Everything else in YAML
// (anchors, aliases, merge keys, tags, block text, several documents) is an error that names it. None of
// it helps to describe a limit, and some of it lets a short file expand into a huge one.
//
// Input isn't trusted. A document may have at most [MaxSize] bytes. First the text is checked (source.go). The
// parser (parse.go) makes a tree of it (tree.go), whose depth and size are limited. The decoder turns
// the tree into rules (decode.go, rule.go, numbers.go, amount.go, price.go).
// [github.com/weirhq/weir.Compile] checks what they mean together, and its findings are traced back to
// the lines that they concern (locate.go).
package rulefile
