"""Hostile snippets. Each prints BROKE OUT when it succeeds, or leaves a mark outside.

All are bounded: without a sandbox they cost at most some seconds and some hundred megabytes. They
find the world they attack (see `world.py`) in the JSON of their first argument.

How fast a machine is must not decide a test. So an attack on a limit holds what it took until it is
stopped, and names every limit that can stop it: on a slow disk the CPU time of 20,000 new files may
run out before the watchdog counts them.
"""

HEAD = """
import ctypes, json, os, platform, signal, socket, struct, sys, time
world = json.loads(sys.argv[1])
libc = ctypes.CDLL(None, use_errno=True)
ARM = platform.machine() == "aarch64"
def won(): print("BROKE OUT", flush=True)
def call(x86, arm, *arguments):
    return libc.syscall(ctypes.c_long(arm if ARM else x86), *arguments)
"""

# Stopped by a limit: the names of all limits that can stop it; "" where it may also end by itself.
LIMITED: dict[str, tuple[set[str], str]] = {
    "cpu_loop": ({"cpu"}, "while True: pass"),
    "sleep": ({"wall"}, "time.sleep(60)"),
    "ignore_sigterm": ({"cpu"}, """
for number in range(1, 65):
    try: signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError): pass
while True: pass"""),
    "shared_memory_given_back": ({"memory"}, """
import mmap
kept = []
for _ in range(336):
    kept.append(mmap.mmap(-1, 4 << 20))
    for at in range(0, 4 << 20, 4096): kept[-1][at] = 1
    kept[-1].madvise(mmap.MADV_DONTNEED)
    time.sleep(.005)
won()"""),
    "shared_memory_behind_one_page": ({"memory"}, """
libc.mmap.restype = ctypes.c_void_p
libc.munmap.argtypes = ctypes.c_void_p, ctypes.c_size_t
for _ in range(336):
    at = libc.mmap(None, ctypes.c_size_t(4 << 20), 3, 0x21, -1, ctypes.c_long(0))
    ctypes.memset(at, 1, 4 << 20)
    libc.munmap(at + 4096, (4 << 20) - 4096)
    time.sleep(.005)
won()"""),
    "areas_of_memory": ({"memory", "cpu"}, """
libc.mmap.restype = ctypes.c_void_p
libc.mprotect.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
at = libc.mmap(None, ctypes.c_size_t(130_000 << 12), 0, 0x4022, -1, ctypes.c_long(0))
for page in range(0, 130_000, 2): libc.mprotect(at + (page << 12), 4096, 1)
for _ in range(50):
    if os.fork() == 0: time.sleep(60); os._exit(0)
time.sleep(30)
won()"""),
    "memory_of_a_thread_that_outlives_the_first": ({"memory"}, """
import threading
for _ in range(4):
    if os.fork() == 0: break
def hold():
    block = bytearray(300 << 20)
    for at in range(0, len(block), 4096): block[at] = 1
    time.sleep(30); won()
threading.Thread(target=hold).start()
call(60, 93, 0)"""),
    # "" where the kernel refuses to write more.
    "gone_files_of_a_thread_that_outlives_the_first": ({"disk", ""}, """
import threading
def hold():
    kept = [open(f"gone{number}", "wb", 0) for number in range(12)]
    for number, file in enumerate(kept):
        os.unlink(f"gone{number}")
        for _ in range(40): file.write(b"x" * (1 << 20))
    time.sleep(10); won()
threading.Thread(target=hold).start()
call(60, 93, 0)"""),
    "gone_files_in_private_maps": ({"disk", ""}, """
import mmap
kept = []
for _ in range(12):
    with open("big", "w+b", 0) as file:
        for _ in range(50): file.write(bytes(1 << 20))
        kept.append(mmap.mmap(file.fileno(), 50 << 20, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ))
    os.unlink("big"); time.sleep(.1)
won()"""),
    # "" where the kernel ends a write to a full tmpfs.
    "mapped_file_that_is_gone": ({"disk", "memory", ""}, """
import mmap
kept = []
for n in range(12):
    with open("big", "w+b") as f:
        f.truncate(60 << 20)
        kept.append(mmap.mmap(f.fileno(), 60 << 20))
    os.unlink("big")
    for at in range(0, 60 << 20, 4096): kept[-1][at] = 1
    time.sleep(0.1)
won()"""),
    "cpu_of_forgotten_children": ({"cpu"}, """
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
for _ in range(40):
    if os.fork() == 0:
        begun = time.process_time()
        while time.process_time() - begun < 0.1: pass
        os._exit(0)
    try: os.wait()
    except ChildProcessError: pass
won()"""),
    "stop_self": ({"wall"}, "os.kill(os.getpid(), signal.SIGSTOP)"),
    "six_processes_of_350_mb": ({"memory", "cpu"}, """
for _ in range(6):
    if os.fork() == 0: break
block = bytearray(350 << 20)
for at in range(0, len(block), 4096): block[at] = 1
time.sleep(20)
won()"""),
    "small_files_of_240_mb": ({"disk", "files", "cpu"}, """
for number in range(960):
    with open(f"f{number}", "wb") as f: f.write(b"x" * (256 << 10))
time.sleep(20)
won()"""),
    "inodes": ({"files", "cpu"}, """
for number in range(20000): open(f"f{number}", "w").close()
time.sleep(20)
won()"""),
    "forks": ({"", "processes", "cpu"}, """
alive = 0
for _ in range(400):
    try:
        if os.fork() == 0: time.sleep(60); os._exit(0)
    except OSError: break
    alive += 1
if alive > 200: won()"""),
    "cpu_in_many_children": ({"cpu"}, """
while True:
    if os.fork() == 0:
        end = time.process_time() + .05
        while time.process_time() < end: pass
        os._exit(0)
    os.wait()"""),
    "shared_memory_map": ({"memory", "cpu"}, """
import mmap
for _ in range(300):
    block = mmap.mmap(-1, 4 << 20)
    for at in range(0, len(block), 4096): block[at] = 1
    globals().setdefault("kept", []).append(block)
time.sleep(20)
won()"""),
    # "" where the kernel refuses to write more.
    "deleted_files": ({"disk", "cpu", ""}, """
kept = []
for number in range(12):
    f = open("gone", "wb"); os.unlink("gone"); kept.append(f)
    for _ in range(20): f.write(b"x" * (1 << 20))
    f.flush()
time.sleep(20)
won()"""),
    "page_tables": ({"memory", "cpu"}, """
import mmap
kept = []
for _ in range(200):
    block = mmap.mmap(-1, 1 << 40, flags=mmap.MAP_PRIVATE | 0x4000, prot=mmap.PROT_READ)
    kept.append(block)
    for at in range(0, 1 << 40, 2 << 20): block[at]
won()"""),
    "folders_without_end": ({"files", "disk", "cpu"}, """
for _ in range(3000):
    os.mkdir("d"); os.chdir("d")
time.sleep(20)
won()"""),
    "unlistable_folder": ({"disk", "files", "cpu"}, """
os.mkdir("dark"); os.chdir("dark")
for number in range(700):
    with open(f"f{number}", "wb") as f: f.write(b"x" * (256 << 10))
os.chmod(".", 0o300)
time.sleep(20)
won()"""),
    "ten_thousand_folders_deep": ({"files", "disk", "cpu"}, """
for _ in range(10000):
    os.mkdir("d"); os.chdir("d")
time.sleep(20)"""),
    "fork_storm_at_exit": ({"", "processes", "cpu"}, """
import atexit
def storm():
    while True:
        try: os.fork()
        except OSError: os._exit(0)
atexit.register(storm)"""),
    "every_signal_blocked": ({"cpu"}, """
signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))
while True: pass"""),
    "new_programs_without_end": ({"cpu"}, """
loop = "import os, sys; os.execv(sys.executable, sys.orig_argv)"
os.execv(sys.executable, [sys.executable, "-S", "-c", loop])"""),
    "folders_swapped_for_symlinks": ({"cpu", "wall"}, """
os.makedirs("a/b/c")
while True:
    os.rename("a/b", "x"); os.symlink("/", "a/b"); os.unlink("a/b"); os.rename("x", "a/b")"""),
    "threads_without_end": ({"", "processes", "cpu"}, """
import threading
try:
    for _ in range(500): threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
    won()
except RuntimeError: os._exit(0)"""),
    "farm_of_symlinks": ({"files", "cpu"}, """
for number in range(20000): os.symlink("/", f"l{number}")
time.sleep(20)"""),
    "stopped_children": ({""}, """
for _ in range(20):
    if os.fork() == 0: os.kill(os.getpid(), signal.SIGSTOP); won(); os._exit(0)"""),
    "result_swapped_by_what_stays_behind": ({""}, """
if os.fork() == 0:
    os.setsid()
    if os.fork(): os._exit(0)
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT): signal.signal(number, signal.SIG_IGN)
    os.symlink(world["folder"] + "/token", "link"); open("file", "w").close()
    while True:
        os.link("file", "new"); os.rename("new", "report.xml")
        os.symlink(world["folder"] + "/token", "new"); os.rename("new", "report.xml")
time.sleep(.2)"""),
    "socket_buffers": ({"memory", "cpu"}, """
for _ in range(59):
    if os.fork() == 0: break
kept = []
try:
    while True:
        pair = socket.socketpair(); kept += pair; pair[0].setblocking(False)
        pair[0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 64 << 20)
        try:
            while True: pair[0].send(bytes(1 << 16))
        except BlockingIOError: pass
except OSError: pass
time.sleep(20)
won()"""),
    "stopped_and_continued": ({"cpu"}, """
if (pid := os.fork()) == 0:
    while True: pass
while True: os.kill(pid, signal.SIGSTOP); os.kill(pid, signal.SIGCONT)"""),
    "cpu_below_the_clock": ({"cpu"}, """
while True:
    end = time.perf_counter() + .003
    while time.perf_counter() < end: pass
    time.sleep(.0005)"""),
    "waits_for_its_own_lock": ({"wall"}, """
import fcntl
fcntl.flock(kept := open("l", "w"), fcntl.LOCK_EX); fcntl.flock(open("l", "w"), fcntl.LOCK_EX)"""),
    "copies_in_the_kernel": ({"disk", "cpu", ""}, """
with open("src", "wb") as f: f.write(b"x" * (20 << 20))
for n in range(30):
    source, copy, done = open("src", "rb"), open(f"d{n}", "wb"), 0
    while done < 20 << 20: done += os.sendfile(copy.fileno(), source.fileno(), done, 20 << 20)
time.sleep(20)
won()"""),
    "sleeping_children_hold_the_pipes": ({""}, """
if os.fork() == 0:
    os.setsid(); time.sleep(60); won()"""),
}  # fmt: skip

# Refused: the snippet goes on without what it wanted.
REFUSED: dict[str, str] = {
    "allocate_1200_mb": """
block = bytearray(1200 << 20)
for at in range(0, len(block), 4096): block[at] = 1
won()""",
    "file_of_256_mb": """
with open("big", "wb") as f:
    for _ in range(256): f.write(b"x" * (1 << 20))
won()""",
    "output_of_200_mb": 'for _ in range(200): os.write(1, b"x" * (1 << 20))',
    "write_outside": 'open(world["folder"] + "/planted", "w").write("x")',
    "remove_another_folder": """
import shutil
shutil.rmtree(world["folder"] + "/other", ignore_errors=True)""",
    "leave_in_dev_shm": 'open("/dev/shm/" + world["mark"], "w").write("x")',
    "environment_of_parent": """
for pid in {os.getppid(), world["parent"], world["victim"]}:
    try:
        if b"hunter2" in open(f"/proc/{pid}/environ", "rb").read(): won()
    except OSError: pass
if "hunter2" in str(os.environ): won()""",
    "token_file": 'print(open(world["folder"] + "/token").read()); won()',
    "leaked_descriptor": """
for number in range(3, 1024):
    try:
        if b"hunter2" in os.pread(number, 100, 0): won()
    except OSError: pass""",
    "tcp_localhost": 'socket.create_connection(("127.0.0.1", world["tcp"]), 2); won()',
    "tcp_external": """
s = socket.socket(); s.settimeout(2)
try: s.connect(("192.0.2.1", 80))
except TimeoutError: won()
except OSError as e: e.errno in (101, 111, 113) and won()""",
    "udp": 's = socket.socket(type=socket.SOCK_DGRAM); s.sendto(b"x", ("127.0.0.1", world["udp"]))',
    "dns": """
s = socket.socket(type=socket.SOCK_DGRAM)
s.connect(("192.0.2.53", 53)); won()""",
    "abstract_socket": 's = socket.socket(socket.AF_UNIX); s.connect("\\0" + world["mark"]); won()',
    "path_socket": 's = socket.socket(socket.AF_UNIX); s.connect(world["folder"] + "/s"); won()',
    "daemon": """
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        for n in (0, 1, 2): os.close(n)
        time.sleep(1.5)
        for path in (world["folder"] + "/daemon", world["work_mark"]): open(path, "w").write("x")
    os._exit(0)""",
    "kill": 'os.kill(world["victim"], 9); won()',
    "ptrace": 'call(101, 117, 16, world["victim"], 0, 0) == 0 and won()',
    "process_memory": 'open(f"/proc/{world[\'victim\']}/mem", "rb"); won()',
    "unshare": 'call(272, 97, 0x10000000) == 0 and won()',
    "mount": 'call(165, 40, b"none", b"/tmp", b"tmpfs", 0, None) == 0 and won()',
    "x32": """
if ARM: sys.exit()
if libc.syscall(ctypes.c_long(0x40000000 + 39)) > 0: won()
if libc.syscall(ctypes.c_long(0x40000000 + 41), 2, 1, 0) >= 0: won()""",
    "io_uring": 'call(425, 425, 4, ctypes.create_string_buffer(200)) >= 0 and won()',
    "fill_dev_shm": """
with open("/dev/shm/fill-" + world["mark"], "wb") as f: f.write(b"x" * (50 << 20))
won()""",
    "chmod_outside": 'os.chmod(world["folder"] + "/mine", 0o777)',
    "process_list": 'any(n.isdigit() and int(n) != os.getpid() for n in os.listdir("/proc")) and won()',
    "symlink_as_result": 'os.symlink(world["folder"] + "/token", "report.xml")',
    # beyond the notes
    "pipe_as_result": 'os.mkfifo("report.xml")',
    "symlinked_folder_of_result": """
os.unlink("sub/there"); os.rmdir("sub"); os.symlink(world["folder"], "sub")""",
    "hard_link_to_outside": 'os.link(world["folder"] + "/token", "report.xml")',
    "datagram_pair_to_path": """
a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
a.sendto(b"x", world["folder"] + "/d")""",
    "clone_namespace": 'call(56, 220, 0x10000000 | 17, 0, 0, 0, 0) == 0 and won()',
    "limits_of_parent": """
import resource
resource.prlimit(world["victim"], resource.RLIMIT_NOFILE, (3, 3)); won()""",
    "priority_of_another": 'os.setpriority(os.PRIO_PROCESS, world["victim"], 19); won()',
    "priority_of_the_user": 'os.setpriority(os.PRIO_USER, 0, 19); won()',
    "io_priority_of_the_user": 'call(251, 30, 3, 0, 0x6007) == 0 and won()',
    "descriptor_on_its_way": """
import array
a, b = socket.socketpair()
a.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [0]))]); won()""",
    "system_v_memory": 'call(29, 194, 4711, 4096, 0o1666) >= 0 and won()',
    "memory_file": 'call(319, 279, b"x", 0) >= 0 and won()',
    "truncate_outside": 'os.truncate(world["folder"] + "/mine", 0)',
    "rename_outside": 'os.rename(world["folder"] + "/other", world["folder"] + "/renamed")',
    "touch_outside": 'os.utime(world["folder"] + "/mine", (1, 1))',
    "attribute_outside": 'os.setxattr(world["folder"] + "/mine", "user.x", b"1")',
    "handle_of_root": """
handle = ctypes.create_string_buffer(struct.pack("IiQ", 8, 1, 2), 64)
directory = os.open(".", os.O_RDONLY)
call(304, 265, directory, handle, 0) >= 0 and won()""",
    "setuid_program": """
import subprocess
if subprocess.run(["su", "-c", "id", "root"], capture_output=True, stdin=-3).returncode == 0: won()""",
    "supervisor_memory": 'open(f"/proc/{os.getppid()}/mem", "rb"); won()',
    "kill_supervisor": 'os.kill(os.getppid(), 9); won()',
    "kill_everybody": 'os.kill(-1, 9)',
    "allocate_disk": """
with open("big", "wb") as f:
    call(285, 47, f.fileno(), 0, 0, 1 << 20) == 0 and won()""",
    "namespace_by_clone3": """
args = (ctypes.c_uint64 * 11)(0x10000000, 0, 0, 0, 17)
pid = call(435, 435, ctypes.byref(args), 88)
if pid >= 0: won()""",
    "core_of_a_crash": """
import resource
resource.getrlimit(resource.RLIMIT_CORE) == (1, 1) or won()""",
    "raise_own_limits": """
import resource
for what in (resource.RLIMIT_CPU, resource.RLIMIT_DATA, resource.RLIMIT_NPROC, resource.RLIMIT_FSIZE):
    try: resource.setrlimit(what, (resource.RLIM_INFINITY,) * 2); won()
    except (OSError, ValueError): pass""",
    "neighbours_folder": """
here = os.path.dirname(os.getcwd())
for path in ("/tmp", os.path.dirname(here), "/", "/root", "/home", "/proc/1", "/sys/kernel", "/dev"):
    try: os.listdir(path); won()
    except OSError: pass""",
    "landlock_again": """
rules = call(444, 444, struct.pack("Q", 8191), 8, 0)
libc.prctl(38, 1, 0, 0, 0); call(446, 446, rules, 0)
open("/etc/hosts").read(); won()""",
    "dumpable": 'libc.prctl(4, 0, 0, 0, 0) == 0 and won()',
    "keyring": 'call(250, 219, 0, -3, 1) >= 0 and won()',
    "terminal_input": 'call(16, 29, 0, 0x5412, b"x") == 0 and won()',
    "capabilities": """
status = open("/proc/self/status").read() if os.path.exists("/proc/self/status") else ""
try: os.setuid(0); won()
except OSError: pass
try: os.mknod("disk", 0o60666, os.makedev(254, 0)); won()
except OSError: pass""",
    "names_of_files_elsewhere": """
libc.inotify_add_watch(libc.inotify_init(), world["folder"].encode(), 0xfff) >= 0 and won()""",
    "processors_of_another": 'os.sched_setaffinity(world["victim"], {0}); won()',
    "priority_raised": 'os.nice(-5); won()',
    "posix_queue": 'call(240, 180, world["mark"].encode(), 0o102, 0o666, None) >= 0 and won()',
    "file_of_a_terabyte": 'open("big", "wb").truncate(1 << 40); won()',
    "undecodable_names": """
for name in (b"new\\nline", b"\\xff\\xfe", b"-rf", b" ", b"a" * 255): open(name, "w").close()
os.mkdir(b"\\xff"); open(b"\\xff/\\xfe", "w").close()""",
    "own_folder_removed": """
os.unlink("main.py"); os.unlink("sub/there"); os.rmdir("sub"); os.rmdir(os.getcwd())""",
    "own_folder_replaced": """
os.unlink("main.py"); os.unlink("sub/there"); os.rmdir("sub"); os.rmdir(here := os.getcwd())
os.symlink(world["folder"], here)""",
    "pipe_as_folder_of_result": 'os.unlink("sub/there"); os.rmdir("sub"); os.mkfifo("sub")',
    "signal_by_pidfd": """
call(424, 424, os.pidfd_open(world["victim"]), 9, None, 0) == 0 and won()""",
    "signal_by_pipe": """
import fcntl
r, w = os.pipe()
fcntl.fcntl(r, fcntl.F_SETOWN, world["victim"]); fcntl.fcntl(r, 10, 9)
fcntl.fcntl(r, fcntl.F_SETFL, os.O_ASYNC); os.write(w, b"x"); time.sleep(.3)""",
    "child_of_the_supervisor": 'call(56, 220, 0x8000 | 17, 0, 0, 0, 0) >= 0 and won()',
    "exchange_with_outside": """
token = (world["folder"] + "/token").encode()
call(316, 276, -100, b"main.py", -100, token, 2) == 0 and won()""",
    "by_way_of_a_path_descriptor": """
folder = os.open(world["folder"], os.O_PATH)
os.open("token", os.O_RDONLY, dir_fd=folder); won()""",
    "devices": """
for name in ("tty", "kmsg", "mem", "fuse", "kvm", "ptmx", "net/tun"):
    try: os.open("/dev/" + name, os.O_RDWR); won()
    except OSError: pass""",
    "shadow": 'open("/etc/shadow").read(); won()',
    "netlink": 'socket.socket(16, socket.SOCK_RAW, 0); won()',
    "machine_to_machine_socket": 'socket.socket(40, socket.SOCK_STREAM); won()',
    "raw_packets": 'socket.socket(17, socket.SOCK_RAW, 3); won()',
    "own_abstract_socket": 's = socket.socket(socket.AF_UNIX); s.bind("\\0x" + world["mark"]); won()',
    "page_faults_by_hand": 'call(323, 282, 1) >= 0 and won()',
    "program_in_the_kernel": """
attributes = ctypes.create_string_buffer(struct.pack("IIIII", 2, 4, 8, 1, 0), 128)
call(321, 280, 0, attributes, 128) >= 0 and won()""",
    "counters_of_the_processor": """
attributes = ctypes.create_string_buffer(struct.pack("IIQ", 1, 112, 0), 112)
call(298, 241, attributes, 0, -1, -1, 0) >= 0 and won()""",
    "another_root": 'call(155, 41, b".", b".") == 0 and won()',
    "chroot": 'os.chroot("."); won()',
    "handle_of_a_file": """
handle, mount = ctypes.create_string_buffer(struct.pack("Ii", 64, 0), 128), ctypes.c_int()
call(303, 264, -100, b"/etc/passwd", handle, ctypes.byref(mount), 0) == 0 and won()""",
    "watching_of_all_files": 'call(300, 262, 0x200, 0) >= 0 and won()',
    "no_random_addresses": 'call(135, 92, 0x0040000) >= 0 and won()',
    "secret_memory_file": 'call(447, 447, 0) >= 0 and won()',
    "ptrace_of_a_sibling": """
if (pid := os.fork()) == 0: time.sleep(5); os._exit(0)
call(101, 117, 16, pid, 0, 0) == 0 and won()
os.kill(pid, 9)""",
    "traced_by_the_supervisor": 'call(101, 117, 0, 0, 0, 0) == 0 and won()',
    "memory_of_the_supervisor_by_call": """
here = ctypes.create_string_buffer(8)
vector = struct.pack("QQ", ctypes.addressof(here), 8)
call(310, 270, os.getppid(), vector, 1, struct.pack("QQ", 0x400000, 8), 1, 0) > 0 and won()""",
    "descriptor_of_the_supervisor": """
for number in range(10):
    call(438, 438, os.pidfd_open(os.getppid()), number, 0) >= 0 and won()""",
    "supervisor_by_proc": """
for what in ("environ", "root/etc/shadow", "cwd/.", "maps", "fd/0", "fdinfo/0", "syscall", "stack"):
    for pid in ("1", str(os.getppid()), str(world["parent"])):
        try: os.open(f"/proc/{pid}/{what}", os.O_RDONLY); won()
        except OSError: pass""",
    "settings_of_the_kernel": """
for name in ("sys/kernel/core_pattern", "sysrq-trigger", "self/oom_score_adj", "self/uid_map"):
    try: open("/proc/" + name, "w").write("-1000"); won()
    except OSError: pass""",
    "signals_to_the_supervisor": """
for number in (signal.SIGSTOP, signal.SIGUSR1, signal.SIGTERM, signal.SIGCHLD, 0):
    try: os.kill(os.getppid(), number); won()
    except OSError: pass""",
    "every_other_descriptor": """
for number in range(3, 1024):
    try: os.write(number, b'{"code": 0}' * 9999); won()
    except OSError: pass""",
    "input_written": """
try: os.pwrite(0, b"x", 0); won()
except OSError: pass
os.write(os.open("/proc/self/fd/0", os.O_RDWR), b"x"); won()""",
    "scheduled_before_all": 'os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1)); won()',
    "locked_memory": """
block = ctypes.create_string_buffer(1 << 20)
libc.mlock(block, 1 << 20) == 0 and won()""",
    "mount_as_a_file": 'call(428, 428, -100, b"/", 1) >= 0 and won()',
    "namespace_of_another": """
for kind in ("net", "mnt", "pid", "user"):
    try: call(308, 268, os.open(f"/proc/self/ns/{kind}", os.O_RDONLY), 0) == 0 and won()
    except OSError: pass""",
    "queues_of_the_disk": """
context = ctypes.c_ulong()
call(206, 0, 60000, ctypes.byref(context)) == 0 and won()""",
    "calls_of_an_older_machine": """
if not ARM:
    import mmap
    code = mmap.mmap(-1, 4096, prot=7)
    code.write(bytes.fromhex("b814000000cd80c3"))
    ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(code)))() > 0 and won()""",
    "key_added": 'call(248, 217, b"user", b"x", b"y", 1, -4) >= 0 and won()',
    "larger_socket_buffers": """
a, _ = socket.socketpair(); a.setblocking(False); a.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 64 << 20)
sent = 0
try:
    while True: sent += a.send(bytes(1 << 16))
except BlockingIOError: sent > 1 << 20 and won()""",
    "by_way_of_its_own_root": 'open("/proc/self/root" + world["folder"] + "/token").read(); won()',
    "opened_without_resolving": """
path, how = (world["folder"] + "/token").encode(), struct.pack("QQQ", 0, 0, 0)
call(437, 437, -100, path, how, 24) >= 0 and won()""",
    "setuid_copy": """
import shutil, subprocess
shutil.copy("/bin/sh", "sh"); os.chmod("sh", 0o6755)
subprocess.run(["./sh", "-c", "id -u"], capture_output=True).stdout == b"0\\n" and won()""",
    "signal_to_a_thread": 'call(234, 131, world["victim"], world["victim"], 9) == 0 and won()',
    "priority_of_a_group": """
try: os.setpriority(os.PRIO_PGRP, os.getpgid(world["victim"]), 19); won()
except OSError: pass
call(251, 30, 2, os.getpgid(world["victim"]), 0x6007) == 0 and won()""",
    "another_cgroup": """
for top in ("/sys/fs/cgroup", "/sys/fs/cgroup/memory", "/sys/fs/cgroup/pids"):
    try: os.mkdir(f"{top}/{world['mark']}"); won()
    except OSError: pass
    try: open(f"{top}/cgroup.procs", "w").write("0"); won()
    except OSError: pass""",
    "no_signal_at_the_death_of_the_parent": """
if os.fork() == 0:
    os.setsid(); libc.prctl(1, 0, 0, 0, 0)
    for n in (0, 1, 2): os.close(n)
    time.sleep(1.5); open(world["folder"] + "/daemon", "w").write("x")""",
    "shared_memory_at_one_stroke": """
import mmap
for size in (5 << 20, 1 << 32): mmap.mmap(-1, size); won()""",
    "shared_memory_of_a_device": """
import mmap
mmap.mmap(os.open("/dev/zero", os.O_RDWR), 64 << 20); won()""",
    "pages_in_a_pipe": """
here = ctypes.create_string_buffer(1)
vector = struct.pack("QQ", ctypes.addressof(here), 1)
r, w = os.pipe()
call(278, 75, w, vector, 1, 0) >= 0 and won()
file = open("main.py")
call(275, 76, file.fileno(), None, w, None, 1, 0) >= 0 and won()""",
    "changes_in_a_folder": """
import fcntl
fcntl.fcntl(os.open("/usr", os.O_RDONLY), 1026, 0xf); won()""",
    "result_of_nothing": 'open("report.xml", "wb").truncate(64 << 20)',
}  # fmt: skip
