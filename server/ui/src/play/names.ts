// The name of each algorithm, with a one-line description.
export const names: Record<string, { title: string; says: string }> = {
  token_bucket: { title: 'Token bucket', says: 'Refills steadily; each request takes a token.' },
  leaky_bucket: { title: 'Leaky bucket', says: 'Each request pours in; it drains steadily.' },
  leaky_queue: { title: 'Leaky queue', says: 'Requests wait their turn and leave evenly.' },
  fixed_window: { title: 'Fixed window', says: 'Counts per window; back to 0 at each edge.' },
  sliding_window_counter: { title: 'Sliding counter', says: 'This window, and the one before by its overlap.' },
  sliding_window_log: { title: 'Sliding log', says: 'Remembers each admission for one window.' },
}

export const titleOf = (algorithm: string) => names[algorithm]?.title ?? algorithm
