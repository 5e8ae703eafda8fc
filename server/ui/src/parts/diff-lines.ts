export interface DiffLine {
  kind: 'add' | 'del' | 'same' | 'gap'
  from?: number
  to?: number
  text: string
}

// hasKeys: a diff may have keys of clients in it, which are written whole in overrides and lists. Those lie too deep for their heads to be
// among the lines, so what looks like one counts: it is long, and no name of a field.
export const hasKeys = (lines: DiffLine[]) => lines.some((l) => l.kind !== 'gap' && /\b(override|allow|deny|whitelist|blacklist|keys)["']?\s*:|^\s*(- )?["']?(?![a-z_]+["']?\s*:)[^\s"':{}[\],]{12,}["']?\s*(:|$)/.test(l.text))

// parseDiff reads a unified diff; a gap stands for each hunk's head, with what the head says beside the numbers.
export function parseDiff(diff: string): DiffLine[] {
  const lines: DiffLine[] = []
  let from = 0
  let to = 0
  let inHunk = false
  for (const line of diff.replace(/\n$/, '').split('\n')) {
    const head = /^@@ -(\d+)(?:,\d+)? \+(\d+)(?:,\d+)? @@ ?(.*)$/.exec(line)
    if (head) {
      from = Number(head[1])
      to = Number(head[2])
      inHunk = true
      lines.push({ kind: 'gap', text: head[3] || `line ${to}` })
    } else if (!inHunk || line.startsWith('\\')) {
      continue // the files' names, or "No newline at end of file"
    } else if (line.startsWith('+')) lines.push({ kind: 'add', to: to++, text: line.slice(1) })
    else if (line.startsWith('-')) lines.push({ kind: 'del', from: from++, text: line.slice(1) })
    else lines.push({ kind: 'same', from: from++, to: to++, text: line.slice(1) })
  }
  return lines
}
