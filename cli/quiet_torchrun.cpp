#include "cli/quiet_torchrun.h"

namespace longspan {

const char* const kQuietTorchrun = R"(
import glob, logging, os, signal, socket, sys, threading, time
begun = time.monotonic()
def say(text):
    try:
        print(text, file=sys.stderr, flush=True)
    except OSError:  # nobody reads any more
        pass
try:
    from torch.distributed.elastic.agent.server.api import SimpleElasticAgent
    from torch.distributed.elastic.multiprocessing.api import PContext, SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import main
except KeyboardInterrupt:
    sys.exit(130)
logging.disable(logging.ERROR)
handed_on, workers_started, starts, waiting, no_more, over = [], [], PContext.start, [], [], []
def text_of(path):
    try:
        return open(path).read()
    except OSError:
        return ''
def children():
    '''None where the system does not say: /proc is not mounted.'''
    lists = glob.glob('/proc/self/task/*/children')
    if lists:
        return [int(pid) for path in lists for pid in text_of(path).split()]
    # A kernel may lack these (CONFIG_PROC_CHILDREN): whose parent is this process, then?
    parents = {}
    for path in glob.glob('/proc/[0-9]*/stat'):
        fields = text_of(path).rpartition(')')[2].split()
        if fields:
            parents[int(path.split('/')[2])] = int(fields[1])
    return [pid for pid in parents if parents[pid] == os.getpid()] if os.getpid() in parents else None
def state_of(pid):
    '''R, S, D, T (stopped), Z (ended), ...; nothing where there is no such process.'''
    return text_of(f'/proc/{pid}/stat').rpartition(')')[2].split()[:1]
def lives(pid):
    return bool(state_of(pid)) and state_of(pid)[0] not in 'ZX'
def end_stopped_workers(patience):
    '''Other workers have given up a worker that somebody stopped (SIGSTOP) for `patience` seconds: it is ended. Counts seconds in
    which this process runs, so that a job which is suspended as a whole goes on.'''
    stopped = {}
    while True:
        time.sleep(1)
        stopped = {pid: stopped.get(pid, 0) + 1 for pid in children() or [] if state_of(pid) == ['T']}
        for pid, seconds in stopped.items():
            if seconds > patience:
                say(f'error: process {pid} of this run was stopped (SIGSTOP) for {seconds} s and did not go on: it is ended')
                os.kill(pid, signal.SIGKILL)
def all_have_ended():
    workers = children()
    return bool(workers_started) and workers_started[-1] and workers is not None and not any(map(lives, workers))
def told_to_end(number):
    return SignalException('told to end', sigval=signal.Signals(number))
def start(workers):
    if no_more:
        raise told_to_end(no_more[0])
    if not workers_started and os.environ.get('LONGSPAN_DDP_TIMEOUT'):
        patience = float(os.environ['LONGSPAN_DDP_TIMEOUT']) + 20  # by then the others have ended
        threading.Thread(target=end_stopped_workers, args=[patience], daemon=True).start()
    workers_started.append(False)
    starts(workers)
    for number in leaving:  # torchrun has taken them
        signal.signal(number, leave)
    workers_started[-1] = True
    if waiting:
        hand_on(waiting.pop(), None)
PContext.start = start
wait_for_launchers = SimpleElasticAgent._exit_barrier
def exit_barrier(agent):
    '''A launcher whose workers are done waits for the other machines' no longer than processes wait for each other.'''
    patience = float(os.environ.get('LONGSPAN_DDP_TIMEOUT') or agent._exit_barrier_timeout)
    agent._exit_barrier_timeout = min(agent._exit_barrier_timeout, patience)
    # A store that says nothing is waited for by a thread, which is left behind.
    meeting = threading.Thread(target=wait_for_launchers, args=[agent], daemon=True)
    meeting.start()
    meeting.join(agent._exit_barrier_timeout + 2)
SimpleElasticAgent._exit_barrier = exit_barrier
def leave(number, frame):
    if over:
        return
    if all_have_ended():
        no_more[:] = no_more or [number]
        return
    raise told_to_end(number)
def hand_on(number, frame):
    if over:
        return
    if workers_started and not workers_started[-1]:
        waiting[:] = [number]
        return
    if handed_on and time.monotonic() - handed_on[0] < 5:
        return
    if not workers_started:
        over.append(True)
        say(f'Stopped before the first step ({signal.Signals(number).name}): nothing was trained, nothing is lost.')
        sys.exit(0)
    workers = children()
    if workers is None or (handed_on and not all_have_ended()):
        raise told_to_end(number)
    handed_on.append(time.monotonic())
    if not workers:
        no_more.append(number)
    for pid in workers:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            pass
handled = [signal.SIGTERM, signal.SIGUSR1]
leaving = [number for number in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT) if signal.getsignal(number) != signal.SIG_IGN]
for number in handled:
    if signal.getsignal(number) != signal.SIG_IGN:
        signal.signal(number, hand_on)
held = signal.pthread_sigmask(signal.SIG_BLOCK, []) & {signal.SIGTERM, signal.SIGUSR1}
def receive():
    signal.pthread_sigmask(signal.SIG_UNBLOCK, held)
    threading.Event().wait()
if held:
    threading.Thread(target=receive, daemon=True).start()
def given(name):
    return next((word.partition('=')[2] for word in sys.argv if word.startswith(name + '=')), '')
def explain(error):
    '''What torchrun itself could not do.'''
    if os.environ.get('LONGSPAN_DEBUG'):
        import traceback
        traceback.print_exc()
    text = ' '.join(str(error).partition('Exception raised from')[0].split()) or type(error).__name__
    address, port = given('--master-addr'), given('--master-port')
    low = text.lower()
    if 'eaddrinuse' in low or 'address already in use' in low:
        return f'port {port} of this machine is taken by another program, perhaps another run. Choose another MASTER_PORT.'
    if 'timed out' in low or 'timeout' in low or 'timedout' in low:
        seconds = given('--rdzv-conf').rpartition('=')[2]
        return (f'the machines of the run did not meet at {address}, port {port}, in {seconds} s. Has each of them been started, '
                'and do all name the first one in MASTER_ADDR and MASTER_PORT?')
    if 'too many open files' in low:
        return 'the launcher may open no more files or connections (ulimit -n): ' + text[:300]
    return f'the processes cannot be started through torchrun: {text[:500]} (LONGSPAN_DEBUG=1 shows all of it)'
def wait_for_first_machine():
    '''torchrun would try the two kinds of addresses of the first machine one after the other, each for as long as it waits in all.'''
    end = begun + float(given('--rdzv-conf').rpartition('=')[2])
    while True:
        try:
            socket.create_connection((given('--master-addr'), int(given('--master-port'))), timeout=5).close()
            return
        except OSError:
            if time.monotonic() > end:
                raise TimeoutError('timed out')
            time.sleep(0.2)
try:
    if int(given('--node-rank') or 0) > 0:
        wait_for_first_machine()
    main()
except ChildFailedError as error:
    rank, failure = error.get_first_failure()
    if failure.exitcode < 0:
        say(f'error: rank {rank} was ended by {signal.Signals(-failure.exitcode).name}')
    sys.exit(failure.exitcode if failure.exitcode > 0 else 128 - failure.exitcode)
except SignalException as error:
    sys.exit(128 + error.sigval)
except KeyboardInterrupt:
    sys.exit(130)
except Exception as error:
    say('error: ' + explain(error))
    sys.exit(1)
finally:
    over.append(True)
    # Python's own end sets what it handles back to the default, which kills; what is ignored stays so.
    for number in handled + leaving:
        signal.signal(number, signal.SIG_IGN)
)";

}  // namespace longspan
