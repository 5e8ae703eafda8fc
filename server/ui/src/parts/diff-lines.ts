export interface DiffLine {
  kind: 'add' | 'del' | 'same' | 'gap'
  from?: number
  to?: number
  text: string
}

// hasKeys reports whether a diff may contain keys of clients, which are written in full in overrides and lists. The
// names of those fields may be too far above a change to be among the lines, so any text that looks like a key counts:
// it is long, and isn't the name of a field.
export const hasKeys = (lines: DiffLine[]) => lines.some((l) => l.kind !== 'gap' && /\b(override|allow|deny|whitelist|blacklist|keys)["']?\s*:|^\s*(- )?["']?(?![a-z_]+["']?\s*:)[^\s"':{}[\],]{12,}["']?\s*(:|$)/.test(l.text))

// parseDiff reads a unified diff. Each hunk's header becomes a gap, with the header's text besides the line numbers.
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
      continue // the header with the file names, or "No newline at end of file"
    } else if (line.startsWith('+')) lines.push({ kind: 'add', to: to++, text: line.slice(1) })
    else if (line.startsWith('-')) lines.push({ kind: 'del', from: from++, text: line.slice(1) })
    else lines.push({ kind: 'same', from: from++, to: to++, text: line.slice(1) })
  }
  return lines
}
