// The node's clock, which the times in its answers follow. The clock of a laptop may be hours off.
let ahead = 0 // how many ms the node's clock is ahead of this browser's

// heard sets the clock from an answer that has just arrived. It ignores small differences, which come from the network.
export function heard(at: string) {
  const now = Date.parse(at) - Date.now()
  if (Math.abs(now - ahead) > 2000) ahead = now
}

export const nodeTime = (here = Date.now()) => here + ahead
