import { defineConfig, loadEnv } from 'vite'

// WEIR_ADMIN is the admin port of the running node to which `npm run dev` sends API requests.
const admin = `http://${loadEnv('', '.', 'WEIR_').WEIR_ADMIN ?? '127.0.0.1:8082'}`

export default defineConfig({
  base: '/console/',
  plugins: [
    {
      // Without this, a page appears for a moment in the system's theme, before the script sets the chosen one.
      name: 'render-after-theme',
      transformIndexHtml: { order: 'post', handler: (html) => html.replace('<script type="module"', '<script type="module" blocking="render"') },
    },
  ],
  build: {
    outDir: 'dist/app',
    emptyOutDir: true,
    // The content security policy allows no data: scripts or styles, so nothing is inlined.
    assetsInlineLimit: 0,
    rolldownOptions: { input: ['index.html', 'play.html'] },
  },
  server: {
    host: '127.0.0.1',
    proxy: {
      '/play/': { target: admin, changeOrigin: true }, // the playground's engine
      // The node refuses requests that come from a page of another origin.
      '/v1': { target: admin, changeOrigin: true, headers: { Origin: admin } },
    },
  },
})
