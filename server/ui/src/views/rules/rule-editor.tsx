import { useMemo, useState } from 'preact/hooks'
import * as api from '../../api'
import * as cli from '../../cli'
import { Button } from '../../parts/button'
import { Card } from '../../parts/card'
import { Trouble } from '../../parts/trouble'
import { Problems, Review, type Change } from '../../review/review'
import { useMay } from '../../session'
import type { RuleText } from '../../wire'
import { CheckLine, Marks } from './check-line'
import { useCheck, useDraft } from './drafts'
import { Editor } from './editor'
import { RuleForm } from './form'
import { change as changed, isForm, readForm, type FieldName, type Form } from './form-model'
import { byField, inRule, type Mark } from './problems'
import { placeOf } from './yaml-edit'
import type { Doc } from './rules-doc'

export const blank = 'limit: 100/minute\n'

// RuleEditor shows the form and the YAML of one rule side by side. The text is the source: the form reads it, and
// changes single fields of it. Without a base, the rule is a new one.
export function RuleEditor({ base, newest, doc, onDone }: { base?: RuleText; newest?: RuleText; doc: Doc | undefined; onDone: (id: string) => void }) {
  const may = useMay('rules')
  const [draft, setDraft] = useDraft<RuleText | undefined>(base ? `rule ${base.rule}` : 'new rule')
  const from = draft?.base ?? base
  const text = draft?.text ?? base?.yaml ?? blank
  const dirty = base ? text !== from!.yaml : true
  const [jump, setJump] = useState<{ line: number; column: number }>()
  const [review, setReview] = useState<Change>()

  const read = useMemo(() => readForm(text), [text])
  const [last, setLast] = useState<Form>()
  const form = isForm(read) ? read : last
  if (isForm(read) && read !== last) setLast(read)
  const id = base?.rule ?? (form?.values.id ?? '').trim()

  const checked = useCheck(dirty && id && isForm(read) ? text : undefined, (text, signal) => api.validate(text, { rule: id, signal }))
  // A new rule must not replace an existing one.
  const taken = !base && doc?.rules.some((r) => r.id === id.toLowerCase())
  const { marks, elsewhere } = useMemo(() => {
    if (!isForm(read)) return { marks: [{ kind: 'problem', line: read.line, column: read.column, text: read.text } as Mark], elsewhere: [] }
    if (taken) return { marks: [{ kind: 'problem', ...placeOf(text, 'id'), field: 'id', text: `id: there is a rule ${id} already: open that, or choose another id` } as Mark], elsewhere: [] }
    if (!checked?.value) return { marks: [] as Mark[], elsewhere: [] }
    const problems = inRule(checked.value.problems, 'problem', text, id)
    const warnings = inRule(checked.value.warnings, 'warning', text, id)
    return { marks: [...problems.here, ...warnings.here], elsewhere: [...problems.elsewhere, ...warnings.elsewhere] }
  }, [read, checked, taken])
  const wrong = marks.some((m) => m.kind === 'problem')
  const failed = checked?.error ? (checked.error as Error).message : undefined

  const write = (text: string) => setDraft(base && text === from!.yaml ? undefined : { base: from, text })
  const stale = base && newest && from && newest.version > from.version && newest.yaml !== from.yaml

  const why = may || (!id ? 'Give the rule an id first.' : !dirty ? 'Nothing is changed yet.' : wrong ? 'Solve the problems first.' : '')
  const open = () =>
    setReview({
      title: base ? `Change rule ${id}` : `New rule ${id}`,
      verb: 'Apply',
      send: (o) => api.putRule(id, text, o),
      cli: (o) => cli.putRule(id, text, o),
      ...(from ? { since: from.version, covers: async () => (await api.rule(id)).yaml !== from.yaml } : {}),
    })

  return (
    <Card title={base ? 'The rule' : 'The new rule'} class="rule-editor">
      {stale && (
        <Trouble title="This rule was changed while you were editing it">
          <p>
            Version {newest.version}
            {newest.changed && <> by {newest.changed.author}</>}. Your text is kept; the review shows both changes.
          </p>
        </Trouble>
      )}
      <div class="sides">
        <div>
          {!isForm(read) && <p class="text-bad">The YAML can't be read. The form follows as soon as it can.</p>}
          {form && (
            <RuleForm
              form={form}
              marks={byField(marks)}
              tiers={doc?.tiers.map((t) => t.name) ?? []}
              isNew={!base}
              disabled={!isForm(read)}
              onChange={(f: FieldName, v: string) => write(changed(text, f, v))}
            />
          )}
        </div>
        <div class="yaml-side">
          <h3>YAML</h3>
          <Editor label="YAML of the rule" value={text} onChange={write} marks={marks} jump={jump} />
          <Marks marks={marks} onJump={(m) => setJump({ line: m.line, column: m.column })} />
          {elsewhere.length > 0 && (
            <Trouble title="Elsewhere in the rules">
              <Problems list={elsewhere} />
            </Trouble>
          )}
        </div>
      </div>
      <div class="editor-foot">
        <CheckLine dirty={dirty} checking={dirty && Boolean(id) && isForm(read) && checked?.text !== text} marks={marks} elsewhere={elsewhere.length} failed={failed} />
        <Button quiet onClick={() => setDraft(undefined)} why={draft ? '' : 'Nothing is changed yet.'}>
          Discard
        </Button>
        <Button kind="primary" onClick={open} why={why}>
          Review change
        </Button>
      </div>
      {review && (
        <Review
          change={review}
          onClose={() => setReview(undefined)}
          onDone={() => {
            setDraft(undefined)
            onDone(id)
          }}
        />
      )}
    </Card>
  )
}
