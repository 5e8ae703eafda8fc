// The node's clock. Times in its answers are by that, and a laptop's may be hours off.
let ahead = 0 // by how much the node's clock is ahead of this browser's, in ms

// heard sets it by an answer of just now. Small differences are the network's.
export function heard(at: string) {
  const now = Date.parse(at) - Date.now()
  if (Math.abs(now - ahead) > 2000) ahead = now
}

export const nodeTime = (here = Date.now()) => here + ahead
