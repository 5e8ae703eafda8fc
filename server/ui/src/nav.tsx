import * as api from './api'
import { useLive } from './live'
import { Icon } from './parts/icon'
import { Button } from './parts/button'
import { fail } from './parts/toast'
import { to } from './router'
import { useSession } from './session'
import { setTheme, useTheme, type Theme } from './theme'
import { views } from './views'

const nextTheme: Record<Theme, Theme> = { system: 'light', light: 'dark', dark: 'system' }

export function Nav({ current, onHelp }: { current: string; onHelp: () => void }) {
  const s = useSession()!
  return (
    <header class="nav">
      <a class="brand" href={to('')} aria-label="Weir, to Now">
        <Icon name="weir" /> <span>Weir</span>
      </a>
      <nav aria-label="Views">
        <ul>
          {views
            .filter((v) => v.key)
            .map((v) => (
              <li key={v.path}>
                <a href={to(v.path)} aria-current={v.path === current ? 'page' : undefined} title={`g ${v.key}`}>
                  <Icon name={v.path || 'now'} /> {v.title} {v.path === '' && <Alarm />}
                </a>
              </li>
            ))}
        </ul>
      </nav>
      <div class="nav-foot">
        <a class="nav-play" href="/play" aria-label="Playground" title="Playground">
          <Icon name="play" /> <span>Playground</span>
        </a>
        <dl class="who">
          <dt>Node</dt>
          <dd title={`${s.node}, version ${s.version}`}>
            {s.node} <small>{s.version}</small>
          </dd>
          <dt>You</dt>
          <dd title={s.role === 'read' ? 'This token may only read.' : 'You may change rules and counters.'}>
            {s.name} <small>{s.role === 'read' ? 'may read' : 'may operate'}</small>
          </dd>
        </dl>
        <div class="nav-tools">
          <ThemeSwitch />
          <Button quiet onClick={onHelp} label="Keys of the console (?)">
            <Icon name="keyboard" />
          </Button>
          {s.session && (
            <Button quiet onClick={() => api.logout().then(() => location.assign(to('login')), fail)} label="Log out">
              <Icon name="logout" />
            </Button>
          )}
        </div>
      </div>
    </header>
  )
}

// Alarm indicates in every view that something is wrong. The view Now says what.
function Alarm() {
  const { data, error } = useLive(5000)
  const n = data?.trouble.length ?? 0
  if (!error && !n) return null
  return (
    <span class="alarm" role="status">
      {error ? 'no answer' : n}
      {!error && <span class="hidden">{n === 1 ? 'trouble' : 'troubles'}</span>}
    </span>
  )
}

export function ThemeSwitch() {
  const { choice } = useTheme()
  return (
    <Button quiet onClick={() => setTheme(nextTheme[choice])} label={`Theme: ${choice}. Change it to ${nextTheme[choice]}`}>
      <Icon name={choice === 'system' ? 'auto' : choice} />
    </Button>
  )
}
