import { Later } from '../../later'
import { useRoute } from '../../router'
import { List } from './list'
import './rules.css'

const rule = () => import('./rule')
const document = () => import('./document')

// The list appears at once. The editor and the YAML library are loaded when they are first needed.
export default function Rules() {
  const { rest, query } = useRoute()
  const view = query.get('view')
  if (rest[0] || view === 'new') return <Later key="rule" title="Rules" load={rule} props={{ id: rest[0] }} />
  if (view === 'yaml') return <Later key="document" title="Rules" load={document} props={{}} />
  return <List />
}
