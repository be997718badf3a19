"""Runs the served files of `GET /v1/tollgate/connect/…` for Python unchanged, and parses all YAML there."""

import os
import subprocess
import sys
import tempfile
import unittest
import urllib.request

import gateway


def served(client):
    with urllib.request.urlopen(f"{gateway.URL}/v1/tollgate/connect/{client}") as answer:
        return answer.read().decode()


@unittest.skipIf(sys.version_info < (3, 10), "LangChain wants Python 3.10")
class Connect(unittest.TestCase):
    def test_langchain_gets_both_answers_with_the_unchanged_snippet(self):
        key = gateway.Key()
        with tempfile.TemporaryDirectory() as home:
            path = os.path.join(home, "ask_langchain.py")
            with open(path, "w", encoding="utf-8") as file:
                file.write(served("langchain"))
            env = {"PATH": os.environ["PATH"], "HOME": home, "LANG": "C.UTF-8", "TOLLGATE_KEY": key.secret}
            done = subprocess.run([sys.executable, path], env=env, cwd=home, capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stdout, "Вы написали: Привет\n" * 2)
        self.assertGreater(key.spent(), 0)

    def test_yaml_files_can_be_parsed(self):
        import yaml  # comes with LangChain

        config = yaml.safe_load(served("continue"))
        self.assertEqual([model["model"] for model in config["models"]], ["demo-chat", "demo-messages", "demo-responses"])
        for model in config["models"]:
            self.assertEqual(model["apiBase"], gateway.URL + "/v1")
            self.assertEqual(model["apiKey"], "${{ secrets.TOLLGATE_KEY }}")
        compose = yaml.safe_load(served("open-webui"))
        environment = compose["services"]["open-webui"]["environment"]
        self.assertEqual(environment["OPENAI_API_BASE_URL"], gateway.URL + "/v1")
        self.assertEqual(environment["DEFAULT_MODELS"], "demo-chat")
        # Compose requires text here, so a bare `true` would be wrong.
        self.assertEqual({type(value) for value in environment.values()}, {str})


gateway.main(Connect)
