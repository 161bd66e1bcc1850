// Search runs in a worker, and browsers start none for pages opened as files. There, a hidden frame takes its place.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      this.frame.srcdoc = `<script>
        postMessage = data => parent.postMessage(data, "*");
        importScripts = () => {};
      </script><script src="${url}"></script>`;
      this.ready = new Promise(resolve => { this.frame.onload = resolve; });
      window.addEventListener("message", event => {
        if (event.source !== this.frame.contentWindow) return;
        const message = new MessageEvent("message", {data: event.data});
        this.dispatchEvent(message);
        if (this.onmessage) this.onmessage(message);
      });
      document.body.appendChild(this.frame);
    }
    postMessage(data) {
      this.ready.then(() => window.postMessage.call(this.frame.contentWindow, data, "*"));
    }
    terminate() {
      this.frame.remove();
    }
  };
}
