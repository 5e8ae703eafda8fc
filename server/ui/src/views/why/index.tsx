import { useState } from 'preact/hooks'
import * as api from '../../api'
import { useLoad } from '../../load'
import { Page } from '../../parts/page'
import { navigate, to, useRoute } from '../../router'
import { Answer } from './answer'
import { Ask } from './ask'
import { asked, queryOf, readQuestion, type Question, type Secrets } from './question'
import { RuleAnswer } from './rule'
import { Start } from './start'
import '../../client/client.css'
import './why.css'

// Why answers "why was I refused?" for a key, for the rule named in a refusal, or for a request that the user
// describes.
export default function Why() {
  const { query } = useRoute()
  const q = readQuestion(query)
  const [secrets, setSecrets] = useState<Secrets>({ user: '', attributes: '' })
  const rules = useLoad((signal) => api.top({ k: 1 }, signal).then((t) => t.rules.map((r) => r.rule).slice(0, 500)), [])

  const ask = (next: Question, s: Secrets) => {
    setSecrets(s)
    navigate(to('why', '', queryOf(next)))
  }
  const kind = asked(q)
  const hidden = Boolean(secrets.user || secrets.attributes)
  return (
    <Page title="Why" lead="Why was a request refused? Paste the client's key or the refusal, or type the request.">
      <Ask question={q} secrets={secrets} rules={rules.data ?? []} onAsk={ask} />
      {kind === 'request' || hidden ? <Answer question={q} secrets={secrets} /> : kind === 'rule' ? <RuleAnswer id={q.rule} /> : <Start />}
    </Page>
  )
}
