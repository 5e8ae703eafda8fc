import { Later } from '../../later'
import { useRoute } from '../../router'
import { List } from './list'
import './rules.css'

const rule = () => import('./rule')
const document = () => import('./document')

// The list is there at once. The editor comes with the YAML library when it is first needed.
export default function Rules() {
  const { rest, query } = useRoute()
  const view = query.get('view')
  if (rest[0] || view === 'new') return <Later key="rule" title="Rules" load={rule} props={{ id: rest[0] }} />
  if (view === 'yaml') return <Later key="document" title="Rules" load={document} props={{}} />
  return <List />
}
