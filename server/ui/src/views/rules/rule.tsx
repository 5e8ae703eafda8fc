import { useEffect, useState } from 'preact/hooks'
import * as api from '../../api'
import * as cli from '../../cli'
import { Changed } from '../../client/changed'
import { useLoad, usePoll } from '../../load'
import { Badge } from '../../parts/badge'
import { Button } from '../../parts/button'
import { Empty } from '../../parts/empty'
import { Failed } from '../../parts/failed'
import { Loading } from '../../parts/loading'
import { Page } from '../../parts/page'
import { Review, type Change } from '../../review/review'
import { navigate, to } from '../../router'
import { useMay } from '../../session'
import { LastHour } from './last-hour'
import { RuleEditor } from './rule-editor'
import { useRulesDoc } from './rules-doc'
import { WhatIf } from './what-if'

export default function Rule({ id }: { id: string | undefined }) {
  return id ? <OneRule key={id} id={id} /> : <NewRule />
}

function NewRule() {
  const { doc, reload } = useRulesDoc()
  return (
    <Page title="New rule" lead="It is added at the end of the rules. Nothing is in force before you have seen what changes, and applied it.">
      <RuleEditor
        doc={doc}
        onDone={(id) => {
          reload()
          navigate(to('rules', id))
        }}
      />
    </Page>
  )
}

function OneRule({ id }: { id: string }) {
  const may = useMay('rules')
  const { doc, reload: reloadDoc } = useRulesDoc()
  const loaded = useLoad((signal) => api.rule(id, signal), [id])
  const usage = usePoll((signal) => api.ruleUsage(id, { k: 50 }, signal), 10_000, [id])
  const [removal, remove] = useState<Change>()
  // Load the rule again after every change of the rules, by others or by this page.
  useEffect(() => {
    if (doc && loaded.data && doc.version > loaded.data.version) loaded.reload()
  }, [doc?.version])

  const rule = loaded.data
  if (!rule) {
    return (
      <Page title={id}>
        {loaded.error?.status === 404 ? (
          <Empty title={`There is no rule ${id}`}>
            <p>It may have been removed. History has the versions that it was in.</p>
            <p>
              <a href={to('rules')}>All rules</a> · <a href={to('history')}>History</a>
            </p>
          </Empty>
        ) : loaded.error ? (
          <Failed error={loaded.error} retry={loaded.reload} />
        ) : (
          <Loading rows={10} />
        )}
      </Page>
    )
  }
  const row = doc?.rules.find((r) => r.id === id)
  const done = () => {
    reloadDoc()
    loaded.reload()
    usage.reload()
  }
  return (
    <Page
      title={rule.rule}
      lead={
        <>
          {row?.shadow && <Badge tone="accent">shadow</Badge>} {row?.candidate && <Badge tone="accent">{`candidate ${row.candidate}`}</Badge>}{' '}
          <Changed loaded={loaded} />
        </>
      }
      actions={
        <>
          <a class="button" href={to('why', '', { rule: id })}>
            Why
          </a>
          <a class="button" href={to('tail', '', { rule: id })}>
            Tail
          </a>
          <Button
            kind="danger"
            why={may}
            onClick={() =>
              remove({
                title: `Delete rule ${id}`,
                verb: 'Delete',
                danger: true,
                lead: 'Its counters are forgotten, and its overrides with it.',
                send: (o) => api.removeRule(id, o),
                cli: (o) => cli.removeRule(id, o),
                since: rule.version,
                covers: async () => (await api.rule(id)).yaml !== rule.yaml,
              })
            }
          >
            Delete rule
          </Button>
        </>
      }
    >
      <LastHour usage={usage.data} error={usage.error} retry={usage.reload} />
      <RuleEditor base={rule} newest={rule} doc={doc} onDone={done} />
      <WhatIf rule={rule} usage={usage.data} onDone={done} />
      {removal && <Review change={removal} onClose={() => remove(undefined)} onDone={done} />}
    </Page>
  )
}
