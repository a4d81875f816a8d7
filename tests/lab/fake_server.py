"""Stands for `sglang.launch_server` in tests of the lab's own code: same flags, /health and /generate.

`FAKE=die` ends at once, `FAKE=die_on_generate` at the first request, `FAKE=stubborn` ignores SIGTERM,
`FAKE=never_ready` answers 503, `FAKE=no_port` lives on without a listener. A child process of it sleeps,
as SGLang's scheduler would run.
"""

import json
import os
import signal
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

MODE = os.environ.get("FAKE", "")
TOKENS_PER_ROUND = 2


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.answer(503 if MODE == "never_ready" else 200, {})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if MODE == "die_on_generate":
            os._exit(3)
        if MODE == "refuse":
            self.answer(400, {"error": "too long"})
            return
        count = body["sampling_params"]["max_new_tokens"]
        rounds = count // TOKENS_PER_ROUND
        meta = {"id": body["text"], "completion_tokens": count, "spec_verify_ct": rounds}
        self.answer(200, {"meta_info": meta, "output_ids": list(range(count)), "sampling": body["sampling_params"]})

    def answer(self, status: int, body: object) -> None:
        content = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


if __name__ == "__main__":
    print("arguments", sys.argv[1:], flush=True)
    if MODE == "die":
        print("no such kernel", file=sys.stderr)
        sys.exit(7)
    if MODE == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    print("child", child.pid, flush=True)
    port = int(sys.argv[sys.argv.index("--port") + 1])
    if MODE == "no_port":  # as SGLang with uvicorn
        print(f"ERROR: [Errno 98] error while attempting to bind on {port}: address already in use", flush=True)
        time.sleep(600)
    if MODE == "slow":
        time.sleep(1)
    ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()
