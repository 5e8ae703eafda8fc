import { useMemo, useState } from 'preact/hooks'
import * as api from '../../api'
import * as cli from '../../cli'
import { ApiError } from '../../api'
import { useLoad } from '../../load'
import { Button } from '../../parts/button'
import { Card } from '../../parts/card'
import { Failed } from '../../parts/failed'
import { Loading } from '../../parts/loading'
import { Page } from '../../parts/page'
import { Review, type Change } from '../../review/review'
import { to } from '../../router'
import { useMay } from '../../session'
import { CheckLine, Marks } from './check-line'
import { useCheck, useDraft } from './drafts'
import { Editor } from './editor'
import { inDocument } from './problems'

type Base = { text: string; etag: string }

// WholeDocument edits all rules, tiers, keys and lists as one YAML document.
export default function WholeDocument() {
  const may = useMay('rules')
  const loaded = useLoad((signal) => api.rules(signal), [])
  const [draft, setDraft] = useDraft<Base>('document')
  const [jump, setJump] = useState<{ line: number; column: number }>()
  const [review, setReview] = useState<Change>()

  const base = draft?.base ?? loaded.data
  const text = draft?.text ?? base?.text ?? ''
  const dirty = base !== undefined && text !== base.text
  const checked = useCheck(dirty ? text : undefined, (text, signal) => api.validate(text, { signal }))
  const marks = useMemo(() => [...inDocument(checked?.value?.problems ?? [], 'problem'), ...inDocument(checked?.value?.warnings ?? [], 'warning')], [checked])
  const wrong = marks.some((m) => m.kind === 'problem')

  if (!base) {
    return <Page title="Whole document">{loaded.error ? <Failed error={loaded.error} retry={loaded.reload} /> : <Loading rows={16} />}</Page>
  }
  const since = Number.parseInt(base.etag)
  const open = () =>
    setReview({
      title: 'Change the rules',
      verb: 'Apply',
      // The dry run is against the newest version. The review shows what others have changed since.
      send: (o) => api.putRules(text, { ...o, ifMatch: o.ifMatch ?? '*' }),
      cli: (o) => cli.apply(since, o),
      since,
      covers: async () => true,
    })
  return (
    <Page
      title="Whole document"
      lead={
        <>
          Version {since}: tiers, keys, rules and lists. <a href={to('rules')}>Back to the rules</a>
        </>
      }
    >
      <Card class="whole">
        <Editor label="YAML of the rules" value={text} onChange={(t) => setDraft(t === base.text ? undefined : { base, text: t })} marks={marks} tall jump={jump} />
        <Marks marks={marks} onJump={(m) => setJump({ line: m.line, column: m.column })} />
        <div class="editor-foot">
          <CheckLine dirty={dirty} checking={dirty && checked?.text !== text} marks={marks} elsewhere={0} failed={checked?.error instanceof ApiError ? checked.error.message : undefined} />
          <Button quiet onClick={() => setDraft(undefined)} why={draft ? '' : 'Nothing is changed yet.'}>
            Discard
          </Button>
          <Button kind="primary" onClick={open} why={may || (!dirty ? 'Nothing is changed yet.' : wrong ? 'Solve the problems first.' : '')}>
            Review change
          </Button>
        </div>
      </Card>
      {review && (
        <Review
          change={review}
          onClose={() => setReview(undefined)}
          onDone={() => {
            setDraft(undefined)
            loaded.reload()
          }}
        />
      )}
    </Page>
  )
}
