"""Redaction: every kind of secret and path found, ordinary code left alone, nothing found twice."""

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from processors.names import redact_names
from processors.redact import DASHED_HOME, HOME, redact, redact_homes, redact_text, redact_workspace
from processors.secrets import find_secret_values

PLANTED = [
    ("ghp_" + "a1B2" * 9, "github_token"),
    ("sk-ant-" + "api03-" + "x" * 40, "anthropic_key"),
    ("sk-proj-" + "Q" * 40, "openai_key"),
    ("hf_" + "Z" * 34, "huggingface_token"),
    ("AKIA" + "ABCDEFGH12345678", "aws_access_key"),
    ("xoxb-" + "123456789012", "slack_token"),
    ("eyJhbGciOi.eyJzdWIiOiJ4.c2lnbmF0dXJl", "jwt"),
    ("ewogICJhbGciOiAiSFMyNTYiCn0.ewogICJzdWIiOiAiMTIzNDU2In0", "jwt"),
    ("vercel_blob_rw_AbCdEf0123456789_" + "9f8e7d6c5b4a" * 2, "service_key"),
    ("npg_Ab3dEf6hIj9k", "service_key"),
    ("K000wI+QmH/zAj/v1FS7dQBkCI5/gro", "service_key"),
    ("*:production." + "be44368985f7fb32" * 4, "service_key"),
    ("DB_PASSWORD=correct-horse-battery", "assigned_secret"),
    ("NEXT_PUBLIC_ADMIN_PASSWORD=Admin2026!", "assigned_secret"),
    ("DEMO_USER_PASSWORD=Demo2026!", "assigned_secret"),
    ('"api_key": "0123456789abcdef"', "assigned_secret"),
    ("postgres://ann:s3cret@db.internal/app", "url_password"),
    ("Authorization: Bearer " + "k" * 32, "authorization"),
    ("Authorization: Bearer C\n" + "k8" * 20, "authorization"),
    ("ann.lee@corp.dev", "email"),
    ("410205301@qq.com", "email"),
    ("12345+ann-lee@users.noreply.github.com", "email"),
    ("ya29." + "a0" * 20, "google_oauth"),
    ("SG." + "x" * 22 + "." + "y" * 43, "sendgrid_key"),
    ("123456789:AA" + "Z" * 33, "telegram_token"),
    ("gsk_" + "q" * 40, "service_key"),
    ("AccountKey=" + "k" * 60 + "==", "assigned_secret"),
    ("--password=correct-horse", "password_argument"),
    ("https://hooks.slack.com/services/T000/B000/" + "x" * 16, "webhook"),
    ("dapi" + "0a" * 16, "service_key"),
    ("dp.pt." + "aB3d" * 11, "service_key"),
    ("SK" + "0a" * 16, "service_key"),
    ("BSA" + "x9-Q" * 7, "service_key"),
    ("curl -s -u ann:pw1", "user_argument"),
    ("https://files.corp.dev/a?sig=abc%2Bdef1234", "url_parameter"),
    ("-----BEGIN RSA PRIVATE KEY-----\nabc\n-----END RSA PRIVATE KEY-----", "private_key"),
    ("const licence = '" + "aB3dE5fG7hJ9kL2mN4pQ6rS8tV0wX1yZ" + "'", "high_entropy"),
]


@pytest.mark.parametrize(("secret", "kind"), PLANTED)
def test_secrets_are_taken_out(secret: str, kind: str) -> None:
    cleaned, kinds = redact_text(f"before {secret} after", cwd="")
    assert kind in kinds
    assert f"[REDACTED:{kind}]" in cleaned
    assert cleaned.startswith("before ")
    assert cleaned.endswith(" after")
    assert redact_text(cleaned, cwd="") == (cleaned, [])


def test_paths_of_the_recorder_become_placeholders() -> None:
    row = {
        "cwd": "/Users/ann/code/app",
        "identity": ["$USER=ann"],
        "secrets": [],
        "source": "--Users-ann-code/a.jsonl",
        "prompt": "see /Users/ann/code/app/src/a.ts and /Users/ann/.npmrc",
        "harness": "pi",
        "session_id": "2026_/home/ann/x",
        "findings": [
            {
                "text": "at C:\\Users\\ann\\x.js and /home/bob/y",
                "target": "cat /home/bob/y",
                "next": "read /home/bob/y",
                "resolved_by": "write /home/bob/y",
                "span": "",
            }
        ],
        "history": [{"role": "user", "content": "mail ann.lee@corp.dev"}],
        "tools": ["bash", "hf_" + "a" * 34],
    }
    out = redact(row) | redact_names(row)
    assert out["session_id"] == "2026_$HOME/x"
    assert out["source"] == "-HOME-code/a.jsonl"
    assert out["prompt"] == "see $WORKSPACE/src/a.ts and $HOME/.npmrc"
    assert out["history"][0]["content"] == "mail [REDACTED:email]"
    assert out["findings"] == [
        {
            "text": "at $HOME\\x.js and $HOME/y",
            "target": "cat $HOME/y",
            "next": "read $HOME/y",
            "resolved_by": "write $HOME/y",
            "span": "",
        }
    ]
    assert out["cwd"] == "$WORKSPACE"
    assert out["tools"] == ["bash", "[REDACTED:huggingface_token]"]


@pytest.mark.parametrize(
    ("text", "cleaned"),
    [
        (r"x\nhf_" + "a" * 34, r"x\n[REDACTED:huggingface_token]"),
        ("tok_hf_" + "b" * 34, "tok_[REDACTED:huggingface_token]"),
        ("密hf_" + "c" * 34, "密[REDACTED:huggingface_token]"),
        (r"{\"api_key\":\"abcd1234\"}", r"{\"api_key\":\"[REDACTED:assigned_secret]\"}"),
        ("API_KEY   =   abcd1234", "API_KEY   =   [REDACTED:assigned_secret]"),
        ('api_key := "abcd1234"', 'api_key := "[REDACTED:assigned_secret]"'),
        ("TOKEN=abcdef", "TOKEN=[REDACTED:assigned_secret]"),
        ("DB_PASS=hunter2", "DB_PASS=[REDACTED:assigned_secret]"),
        ("x-api-key: ab12cd", "x-api-key: [REDACTED:assigned_secret]"),
        ("password=$ecret123", "password=[REDACTED:assigned_secret]"),
        ('password: "correct horse"', 'password: "[REDACTED:assigned_secret]"'),
        ("Authorization: Basic YTpi", "Authorization: Basic [REDACTED:authorization]"),
        ("redis://:pw1secret@host:1", "redis://[REDACTED:url_password]@host:1"),
        ("https://ann:p@ss@host/x", "https://[REDACTED:url_password]@host/x"),
        ("MIIEow==\nab12\n-----END RSA PRIVATE KEY-----", " [REDACTED:private_key]"),
        ("bob@company.py", "[REDACTED:email]"),
        ("user@realcorp.com", "[REDACTED:email]"),
        *(
            (f"{before}ghp_{'aB3d' * 9}", f"{before}[REDACTED:github_token]")
            for before in (r"\u001b[32m", r"\u0022", "?x=a%3D", "\x1b[1m", r"\x1b[1;31m")
        ),
        ("login ann password hunter2", "login ann password [REDACTED:password_argument]"),
        ("mysql -u ann -phunter2 db", "mysql -u ann -p[REDACTED:password_argument] db"),
        ("sshpass -p 'hunter2' ssh", "sshpass -p '[REDACTED:password_argument]' ssh"),
        ('"auth": "dXNlcjpwYXNzd29yZA=="', '"auth": "[REDACTED:stored_login]"'),
        ("_auth=dXNlcjpwYXNzd29yZA==", "_auth=[REDACTED:stored_login]"),
        ('{"name":"DB_PASSWORD","value":"4lBYq9xT2"}', '{"name":"DB_PASSWORD","value":"[REDACTED:stored_login]"}'),
        ("<password>hunter2</password>", "<password>[REDACTED:stored_login]</password>"),
        ("<password><![CDATA[hunt3r!]]></password>", "<password><![CDATA[[REDACTED:stored_login]</password>"),
        ('psk="Quiver31#7cn"', 'psk="[REDACTED:assigned_secret]"'),
        ("xoxb-123456789012-1\u200b234567890123-" + "aB3d" * 6, "[REDACTED:slack_token]"),
        ("Cookie: sessionid=0a1b2c3d4e", "Cookie: [REDACTED:stored_login]"),
        ('"cookie": "q8Xv2LmP0rTz5WnKd7Yb"', '"cookie": "[REDACTED:stored_login]"'),
        ("db.corp:5432:app:ann:hunter2", "db.corp:5432:app:ann:[REDACTED:pgpass]"),
        ("ntn_" + "a1B2" * 8, "[REDACTED:service_key]"),
        ("export BW_SESSION=aJ3d/K9+vQz7Lm2Xw/Rt5Yb8Nc1Fg6Hp4==", "export BW_SESSION=[REDACTED:high_entropy]"),
        ("the License key sk_D;b@7xK2mQ9!vR4", "the License key [REDACTED:stated_secret]"),
        ("10.0.0.3 login 5530 parol 5530 shu", "10.0.0.3 login 5530 parol [REDACTED:stated_secret] shu"),
        ("账号: ann@corp 密码 lOve16", "账号: ann@corp 密码 [REDACTED:stated_secret]"),
        ('有 root 密码 "666" 可用', '有 root 密码 "[REDACTED:stated_secret]" 可用'),
        ("contraseña “Arkan_01”.", "contraseña “[REDACTED:stated_secret]”."),
        ("la contraseña `abc12345`", "la contraseña `[REDACTED:stated_secret]`"),
        (r'"refresh\":\"q8Xv2LmP0rTz5WnKd7YbQ8Xv2LmP', r'"refresh\":\"[REDACTED:assigned_secret]'),
        *(
            (f"{word}: Qwe123rty", f"{word}: [REDACTED:assigned_secret]")
            for word in ("hasło", "mật khẩu", "wachtwoord")
        ),
        *(
            (f"{before}Qwe123rty", f"{before}[REDACTED:stated_secret]")
            for before in ("密码 ", "ваш пароль - ", "パスワードは", "비밀번호는 ", "账号\uff1aann / ")
        ),
        ("e81d209ce9ff493daaeb6f747de0b44b.u6QnO4jSwaZGaQ6S", "[REDACTED:service_key]"),
        ("App Secret 是 `5t8oAj7M2maFqAV3W3idVh0ZDuVGkgm2`", "App Secret 是 `[REDACTED:stated_secret]`"),
        ("token 是 5t8oAj7M2maFqAV3。现在", "token 是 [REDACTED:stated_secret]。现在"),
        ("API Key:\r\nL9tpQ3+hCR1mq+9GM==", "API Key:\r\n[REDACTED:stated_secret]"),
        ("OKX Passphrase\nQian159.", "OKX Passphrase\n[REDACTED:stated_secret]"),
        ("username ann password PASSword!!1711", "username ann password [REDACTED:stated_secret]"),
        ('curl x -b "connect.sid=s%3AyKDfHvR4F6"', 'curl x -b "[REDACTED:stored_login]"'),
        ("USER-ID  PASSWORD\nann      hv7Kq!mZ2x", "USER-ID  PASSWORD\nann      [REDACTED:stated_secret]"),
        ("PASS=hunter2", "PASS=[REDACTED:assigned_secret]"),
        ("eyJ0eXAiOiJKV1QiLCJh.eyJqdGkiOiI0NjNl\r\n", "[REDACTED:jwt]\r\n"),
        ('echo "*:5432:app:ann:hunter2"', 'echo "*:5432:app:ann:[REDACTED:pgpass]"'),
        (f"SECRET_KEY_BASE={'0a1b2c3d' * 8}", "SECRET_KEY_BASE=[REDACTED:assigned_secret]"),
        (
            "永豐sk\n\nFCcefW9iatHvYyp3XgSYVM1Vhdm\n\nApi token\n\n3r6UGMUX7bnxhnbrZ92sSseGVzL3",
            "永豐sk\n\n[REDACTED:stated_secret]\n\nApi token\n\n[REDACTED:stated_secret]",
        ),
        ("the password is Mango-Tree-19.", "the password is [REDACTED:stated_secret]"),
        ("Password for the VPN: Falcon!1987", "Password for the VPN: [REDACTED:stated_secret]"),
        ("user: bob pw: x9Kq2mmZ", "user: bob pw: [REDACTED:stated_secret]"),
        ("<td>Password</td><td>Kite7788</td>", "<td>Password</td><td>[REDACTED:stated_secret]</td>"),
    ],
)
def test_secrets_are_found_however_they_are_written(text: str, cleaned: str) -> None:
    assert redact_text(text, cwd="")[0] == cleaned
    assert redact_text(cleaned, cwd="") == (cleaned, [])


@pytest.mark.parametrize(
    "text",
    [
        *("the password is auth-token-2", "the password is stored in env-file-2", "password for the step: optional"),
        *("pw: string", "pw = page.width2", "import playwright as pw", "<td>Token</td><td>string</td>"),
        *("max_tokens=4096", "token: string", "password: string;", "apiKey = getKey()"),
        *("apiKey: process.env.API_KEY,", "self.token = token", "TOKEN=${HF_TOKEN}", "TOKEN=$1"),
        *("middleware-sdk-s3/-/middleware-sdk-s3-3.957.0.tgz", "password が空なのでエラーになる[L103-L108"),
        *("User ann password reset2 flow", 'пароль "никто не знает 7"', 'input("请输入密码")', 'parole "vostra"'),
        *("TMUX_SESSION=ses_0b1c2d3e4f5a6b7c8d9e0f1a", "License key required"),
        *("Unexpected token: punc", "unexpected token: 5", "token == abc123", "foo --password"),
        *("export ANTHROPIC_API_KEY=sk-ant-...", '"apiKey": "OLLAMA_API_KEY"', "primary_key: a1"),
        *(
            "git@github.com:a/b",
            "icon@2x.png",
            "ann@example.com",
            "github-actions@users.noreply.github.com",
            "docker run -u 1000:1000",
        ),
        *("integrity: sha512-aB3dE5fG7hJ9kL2mN4pQ6rS8tV0wX1yZ0123", "const id = " + "0a1b" * 10),
        *("http://localhost:3000/@fs/x", "--- PASS: TestFoo2", "https://x.com/home/settings"),
        "me-ops__the-ai-harness/main_sessions_88616e07-f4e6-41ab-9157-bc7b373a246c.jsonl",
        *("DB_PASSWORD: ${DB_PASSWORD:-your_secure_password}", "prod_U7rKbMMHAFayBx"),
        *("MIN_PASSWORD=12ab56", "TEST_PASSWORD=test1234"),
        *("KEY: rtl8822b_set_FwMacIdConfig_cmd(wlan0)", "SQUARE_ACCESS_TOKEN=EAAAxxxxxxxxxxxx"),
        *("CREDENTIALS: fleet_health=unknown valid=0", "x: 0a1b2c@group.calendar.google.com"),
        *("postgres://$USER:$PASSWORD@host/db", "--home-dir x", "const token = await next1()"),
        *(
            "a.py:3:        pass\na.py:4:        self.timeout(30)",
            "+    pass\n+    font_size=dp(13),",
            "12\tpass\n13\tfont_size=dp(13),",
            "ACCESS_TOKEN   - Required\nprocess.exit(0);",
            # A heading, and code behind the end of its table.
            "name   token\nann    none\nself.timeout(30)  foo(13)  bar\na()  self.timeout(30)",
        ),
        *("cookie: { secure: true, maxAge: 86400000 }", "cookie: { secure: process.env.NODE_ENV === 'production' }"),
        *("Culture=neutral, PublicKeyToken=b77a5c561934e089", 'value too great (error token is "10#Fetching")'),
        *(
            "- **1password** - 1Password CLI",
            "contraseña (SHA\u2011256)",
            "암호: AES-256",
            '"bssid": "02:42:0a:0b:00:07"',
        ),
        *("https://open.feishu.cn/search?code=99991672&from=openapi", "https://f10.cn/x.aspx?code=SH603986"),
        *('if key == "cookie":\n    cookies.update(to_dict(value))', "cookie: req.headers.cookie"),
        *("[sudo] ann 的密码\uff1aRunning as root", "call_a1|fc_04a1088bb426ce340169f07e8de140819b"),
        *("Unexpected token: keyword-function9", "unrecognized token: customer_id2", "Next token: eyebrow-9"),
        *("cache miss for key: node-modules-linux-v3-a81f2", "Cache restored from key: npm-Linux-x64-9f2b1c"),
        *("RUN_DIR=/tmp/backlink-gate-835-20260703-170305", 'name="password"\n   181→    type="x"'),
    ],
)
def test_code_and_placeholders_stay(text: str) -> None:
    assert redact_text(text, cwd="") == (text, [])


@pytest.mark.parametrize(
    ("text", "cleaned"),
    [
        *((f"/home/ann{end}", f"$HOME{end}") for end in "`>};|&?!#。)\"' "),
        (r"\/home\/ann\/x", r"$HOME\/x"),
        ("%2Fhome%2Fann%2Fx", "$HOME%2Fx"),
        (r"C:\\\\Users\\\\ann\\\\x", r"$HOME\\\\x"),
        (r"C:\Users\Ann Lee\x", r"$HOME\x"),
        ("/mnt/c/Users/ann/x", "$HOME/x"),
        (".claude/projects/-home-ann/a", ".claude/projects/-HOME/a"),
        ("file:///root/x", "file://$HOME/x"),
        ("cc -I/home/ann/inc -I/root/x", "cc -I$HOME/inc -I$HOME/x"),
        (r'"failed\n/home/ann/x.py"', r'"failed\n$HOME/x.py"'),
        (r"\u001b[31m/home/ann/x", r"\u001b[31m$HOME/x"),
        ("--- a/home/ann/x", "--- a$HOME/x"),
        ("/var/home/ann/x", "$HOME/x"),
        ("/cygdrive/c/Users/ann/x", "$HOME/x"),
        (r"c:\users\ann\x", r"$HOME\x"),
        (r"\\wsl$\Ubuntu\home\ann\x", r"$HOME\x"),
        ("projects/C--Users-ann-app/s", "projects/-HOME-app/s"),
        ("/Users/John Smith/x", "$HOME/x"),
    ],
)
def test_home_is_found_however_it_is_written(text: str, cleaned: str) -> None:
    assert redact_text(text, cwd="")[0] == cleaned


def test_a_short_workspace_is_a_whole_path() -> None:
    text = "/app/b (/app). myapp/app /app2"
    assert redact_text(text, "/app")[0] == "$WORKSPACE/b ($WORKSPACE). myapp/app /app2"
    assert redact_text("/home/ann/x", "/home")[0] == "$HOME/x"


def test_the_users_own_name_is_found_where_nothing_else_tells() -> None:
    text = "medium/Users/ann.lee/x ann.lee@Anns-MacBook-Air ~ % ls /var/folders/49/abcdef0123456/T/y"
    cleaned, _ = redact_text(text, "/Users/ann.lee/app")
    assert cleaned == "medium$HOME/x $USER@$HOST ~ % ls $TMPDIR/y"
    assert redact_text(cleaned, "/Users/ann.lee/app") == (cleaned, [])


PIECES = st.sampled_from(
    """api_key token = : " ' \\ :// @ . / -u curl Bearer a1b2c3d4 hunter2 /home/ann -home-ann $HOME
    [REDACTED:email] sk-ant-0123456789abcdefghij ? & sig= \n host.com password 密""".split(" ")
)


@given(st.lists(PIECES, max_size=12).map("".join))
def test_what_was_redacted_holds_nothing_more(text: str) -> None:
    once, _ = redact_text(text, "/home/ann")
    assert redact_text(once, "/home/ann") == (once, [])


@pytest.mark.parametrize(
    ("text", "cleaned"),
    [
        ("cat ~janedoe/x", "cat $HOME/x"),
        (r"\\srv\Users\janedoe\p", r"\\srv$HOME\p"),
        ("-rw-r--r--@ 1 janedoe  staff  12 a.ts", "-rw-r--r--@ 1 $USER  staff  12 a.ts"),
        ("drwxr-xr-x 2 janedoe janedoe 4096 .", "drwxr-xr-x 2 $USER $USER 4096 ."),
        (
            "ssh-rsa AAAAB3NzaC1yc2EAAAADAQABAAAB zoe@thinkpad.local",
            "ssh-rsa AAAAB3NzaC1yc2EAAAADAQABAAAB $USER@$HOST",
        ),
        ("ask janedoe about it", "ask janedoe about it"),
    ],
)
def test_the_recorders_name_goes_where_it_names_a_place(text: str, cleaned: str) -> None:
    assert redact_text(text, "/Users/janedoe/work/x") == (cleaned, [])


HOME_PIECES = [
    *("/Users/ann/x", "/home/", "bob", "C:\\Users\\Ann Bee\\", "c:/users/x y/", "%2FUsers%2Fann%2f"),
    *("\\/home\\/a\\/b", "/mnt/c/Users/z", "/cygdrive/c/Users/q w/", "/var/home/u", "@fs/Users/k"),
    *("//wsl.localhost/Ubuntu-22.04/home/ann", "\\\\wsl$\\Deb\\home\\x", " -I/Users/a", " a/Users/b"),
    *("--Users-ann-x", "-home-bob/", "C--Users-me-", "/root", "/root/.ssh", "/rooted", "users", "/"),
    *("/homepage/", "/data/data/com.termux/files/home/x", "\\n/Users/q", "\x1b[31m/home/z", "Users/"),
    *("/System/Volumes/Data/Users/p/", "/Users/Jo Smith/x", "\n", " ", "\t", "$", ".", "-", "a", "'", "="),
]


@given(st.lists(st.sampled_from(HOME_PIECES), max_size=9).map("".join))
def test_words_that_are_passed_over_hold_no_home(text: str) -> None:
    plainly = DASHED_HOME.sub("-HOME", HOME.sub("$HOME", f"\n{text}"))[1:]
    assert redact_homes(text) == plainly


@given(st.text("/a.-b\n", max_size=40), st.sampled_from(["/a", "/a/a", "/a.b", "aa/a"]))
def test_a_workspace_is_found_where_a_pattern_of_its_own_would_find_it(text: str, cwd: str) -> None:
    pattern = rf"(?<![A-Za-z0-9.$-]){re.escape(cwd)}(?![\w-]|\.\w)"
    assert redact_workspace(text, cwd) == re.sub(pattern, "$WORKSPACE", text)


@pytest.mark.parametrize("token", ["q8Xv2LmP0rTz5WnKd7Yb", "Kx7pQ2Lm", "Summer2024!"])
def test_a_secret_that_one_text_names_is_taken_out_of_all(token: str) -> None:
    row: dict[str, Any] = {name: [] for name in ("history", "findings", "tools", "secrets")}
    broken = "\r\n".join(filter(None, [token[:8], token[8:]]))
    said = f"use `{token}` there, {broken}"
    texts = {"prompt": f"AUTH_TOKEN={token}\nwhy?", "history": [{"role": "user", "content": said}]}
    cleaned = redact({**row, **texts, "cwd": "", "identity": None})
    assert cleaned["prompt"] == "AUTH_TOKEN=[REDACTED:assigned_secret]\nwhy?"
    hidden = "use `[REDACTED:known_secret]` there, [REDACTED:known_secret]"
    assert cleaned["history"] == [{"role": "user", "content": hidden}]


def test_the_digits_of_a_password_are_taken_out_where_they_stand_alone() -> None:
    row: dict[str, Any] = {name: [] for name in ("history", "findings", "secrets")}
    row |= {"prompt": "73519264", "tools": ["echo 73519264 | sudo -S ls"], "cwd": "", "identity": None}
    assert redact(row)["prompt"] == "[REDACTED:known_secret]"


def test_the_sentence_behind_a_password_stays() -> None:
    text = "root密码:hunter2.你要指挥你的部下进行检查"
    assert redact_text(text, "")[0] == "root密码:[REDACTED:assigned_secret]你要指挥你的部下进行检查"


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("TOKEN=hf_" + "abcdefghij" * 6 + "012345", "huggingface_token"),
        ("n" * 60 + "1!\n-----END RSA PRIVATE KEY-----", "private_key"),
        ("a1  " * 60 + "!\n-----END RSA PRIVATE KEY-----", "private_key"),
    ],
)
def test_no_text_keeps_a_pattern_busy(text: str, kind: str) -> None:
    # Where a pattern can divide a word in many ways, each of these takes longer than anyone waits.
    assert redact_text(text, cwd="")[1] == [kind]
    assert len(find_secret_values(text)) == (kind == "huggingface_token")
