// The theme: light, dark, or the system's. The choice is kept in localStorage.
import { useEffect, useState } from 'preact/hooks'

export type Theme = 'system' | 'light' | 'dark'
const kept = 'weir-theme'
const dark = matchMedia('(prefers-color-scheme: dark)')
const listeners = new Set<() => void>()

export function theme(): Theme {
  const t = document.documentElement.dataset.theme
  return t === 'light' || t === 'dark' ? t : 'system'
}

export function setTheme(t: Theme) {
  const root = document.documentElement
  if (t === 'system') delete root.dataset.theme
  else root.dataset.theme = t
  try {
    if (t === 'system') localStorage.removeItem(kept)
    else localStorage.setItem(kept, t)
  } catch {
    // If the browser doesn't allow storage, the theme lasts until the page is closed.
  }
  listeners.forEach((f) => f())
}

export function startTheme() {
  try {
    setTheme((localStorage.getItem(kept) as Theme | null) ?? 'system')
  } catch {
    setTheme('system')
  }
  dark.addEventListener('change', () => listeners.forEach((f) => f()))
}

// useTheme returns the choice, and whether the theme is dark now. Canvases must be redrawn when that changes.
export function useTheme(): { choice: Theme; dark: boolean } {
  const [, again] = useState(0)
  useEffect(() => {
    const f = () => again((n) => n + 1)
    listeners.add(f)
    return () => void listeners.delete(f)
  }, [])
  const choice = theme()
  return { choice, dark: choice === 'system' ? dark.matches : choice === 'dark' }
}

// color resolves a design token to a color that a canvas understands.
export function color(token: string): string {
  const probe = document.createElement('span')
  probe.style.color = `var(${token})`
  document.body.append(probe)
  const c = getComputedStyle(probe).color
  probe.remove()
  return c
}
