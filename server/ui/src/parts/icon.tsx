// Icons of 16 by 16 pixels, drawn with one stroke.
const paths: Record<string, string> = {
  weir: 'M1.5 5h4.6c3 0 2.4 6.5 5.4 6.5h3M6 8.5v5',
  now: 'M1.5 9h3l2-6 3 10 2-6 1 2h2',
  why: 'M8 14.5a6.5 6.5 0 1 0-.01 0M6 6.2c.2-2.6 4.2-2.4 4 .1C9.9 7.7 8 7.9 8 9.4M8 11.6v.1',
  keys: 'M6 10.5a3.5 3.5 0 1 0-.01 0M8 5.2 13.5 2.5M11 3.8l1 2.2',
  rules: 'M2 4h7M13 4h1M11 2.5v3M2 12h7M13 12h1M11 10.5v3M2 8h2M8 8h6M6 6.5v3',
  history: 'M2.5 8a5.5 5.5 0 1 1 1.8 4.1M2.3 13v-2.8h2.8M8 5v3.3l2.2 1.3',
  tail: 'M2 3.5h12M2 6.5h8M2 9.5h10M2 12.5h5M11 12.5l1.5 1.5L15 11.5',
  play: 'M4.5 2.5v11l8.5-5.5z',
  keyboard: 'M1.5 4h13v8.5h-13zM4 6.8h.1M6.6 6.8h.1M9.3 6.8h.1M12 6.8h.1M4.5 9.8h7',
  logout: 'M6 2.5H2.5v11H6M10.5 5 13.5 8l-3 3M13 8H6',
  light: 'M8 10.8a2.8 2.8 0 1 0-.01 0M8 1v1.5M8 13.5V15M1 8h1.5M13.5 8H15M3 3l1 1M12 12l1 1M3 13l1-1M12 4l1-1',
  dark: 'M13.5 9.5A6 6 0 0 1 6.5 2.5a6 6 0 1 0 7 7z',
  auto: 'M8 14a6 6 0 1 0-.01 0M8 2v12M8 5l4.6-2M8 8h6M8 11l5 1',
  close: 'M3.5 3.5l9 9M12.5 3.5l-9 9',
  copy: 'M5.5 5.5v-3h8v8h-3M2.5 5.5h8v8h-8z',
  done: 'M2.5 8.5l3.5 4 7.5-9',
  pause: 'M5 3v10M11 3v10',
  first: 'M2.5 3.5v9M8.5 3.5 4 8l4.5 4.5zM14 3.5 9.5 8l4.5 4.5z',
  back: 'M3.5 3.5v9M12.5 3.5 6.5 8l6 4.5z',
  step: 'M12.5 3.5v9M3.5 3.5l6 4.5-6 4.5z',
  up: 'M4 9.5 8 5.5l4 4',
  down: 'M4 6.5l4 4 4-4',
  warn: 'M8 2 15 14H1ZM8 6.5v3.5M8 12v.1',
}

export function Icon({ name }: { name: string }) {
  return (
    <svg class="icon" viewBox="0 0 16 16" aria-hidden="true">
      <path d={paths[name] ?? ''} />
    </svg>
  )
}
