// The views, in the order of the navigation. Each is a folder with a default export, loaded when it is opened.
import type { ComponentType } from 'preact'
import type { ViewProps } from './app'

export interface ViewEntry {
  path: string // after /console/
  title: string
  key?: string // the view opens with g and this key; a view without a key isn't in the navigation
  load: () => Promise<{ default: ComponentType<ViewProps> }>
}

export const views: ViewEntry[] = [
  { path: '', title: 'Now', key: 'n', load: () => import('./views/now') },
  { path: 'why', title: 'Why', key: 'w', load: () => import('./views/why') },
  { path: 'keys', title: 'Keys', key: 'k', load: () => import('./views/keys') },
  { path: 'rules', title: 'Rules', key: 'r', load: () => import('./views/rules') },
  { path: 'history', title: 'History', key: 'h', load: () => import('./views/history') },
  { path: 'tail', title: 'Tail', key: 't', load: () => import('./views/tail') },
  { path: 'login', title: 'Log in', load: () => import('./views/login') },
]
