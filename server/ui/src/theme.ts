// Light, dark, or as the system has it. The choice is kept in localStorage.
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
    // A browser that keeps nothing still shows the theme until the page is closed.
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

// useTheme is the choice, and whether that is dark now. What is drawn on a canvas must be drawn again.
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

// color resolves a token to what a canvas understands.
export function color(token: string): string {
  const probe = document.createElement('span')
  probe.style.color = `var(${token})`
  document.body.append(probe)
  const c = getComputedStyle(probe).color
  probe.remove()
  return c
}
