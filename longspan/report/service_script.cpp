#include "longspan/report/service_script.h"

namespace longspan {

const char* const kServiceScript = R"(
import importlib, importlib.util, json, os, sys
answers = os.fdopen(os.dup(1), 'w')
os.dup2(2, 1)  # packages print
sys.path = [path for path in sys.path if path]  # a folder ./wandb is no package
def tell(**words):
    print(json.dumps(words), file=answers, flush=True)
start = json.loads(sys.stdin.readline())
settings, run_name = start['settings'], start['run_name'] or None
# Metrics of the whole run: each has one value and no curve.
SUMMARY = {'train_runtime', 'train_samples_per_second', 'train_steps_per_second', 'train_loss', 'total_flos'}
def tag(name):
    return 'eval/' + name[5:] if name.startswith('eval_') else 'train/' + name
def points(entry, step):
    return {tag(name): value for name, value in entry.items() if name not in SUMMARY} | {'train/global_step': step}
class Wandb:
    def begin(self, wandb):
        self.wandb = wandb
        names = {'name': run_name} if run_name else {}
        run = wandb.init(project=os.environ.get('WANDB_PROJECT', 'llamafactory'), **names)
        wandb.config.update(settings, allow_val_change=True)
        wandb.define_metric('train/global_step')
        wandb.define_metric('*', step_metric='train/global_step', step_sync=True)
        return getattr(run, 'url', None)
    def log(self, entry, step):
        for name in [name for name in entry if name in SUMMARY]:
            self.wandb.run.summary[name] = entry[name]
        self.wandb.log(points(entry, step))
    def end(self, status):
        self.wandb.finish(exit_code=status)
class Trackio:
    def begin(self, trackio):
        self.trackio = trackio
        trackio.init(project=start['project'], name=run_name, space_id=start['trackio_space_id'] or None, resume='allow')
        trackio.config.update(settings, allow_val_change=True)
    def log(self, entry, step):
        self.trackio.log(points(entry, step))
    def end(self, status):
        self.trackio.finish()
class Swanlab:
    def begin(self, swanlab):
        self.swanlab, given = swanlab, start['swanlab']
        if given:
            words = {'project': given['project'], 'workspace': given['workspace'] or None, 'mode': given['mode'],
                     'experiment_name': given['run_name'] or run_name, 'logdir': given['logdir'] or None}
        else:
            words = {'project': os.environ.get('SWANLAB_PROJECT'), 'experiment_name': run_name}
        words['id'], words['resume'] = os.environ.get('SWANLAB_RUN_ID'), os.environ.get('SWANLAB_RESUME')
        swanlab.init(**{name: word for name, word in words.items() if word is not None})
        swanlab.config.update(settings)
    def log(self, entry, step):
        for name in [name for name in entry if name in SUMMARY]:
            self.swanlab.log({'single_value/' + name: entry[name]}, step=step)
        self.swanlab.log(points(entry, step), step=step)
    def end(self, status):
        self.swanlab.finish()
class Mlflow:
    def begin(self, mlflow):
        self.mlflow = mlflow
        experiment = os.environ.get('MLFLOW_EXPERIMENT_NAME')
        if experiment:
            mlflow.set_experiment(experiment)
        mlflow.start_run(run_name=run_name)
        short = [(name, value) for name, value in settings.items() if len(value) <= mlflow.utils.validation.MAX_PARAM_VAL_LENGTH]
        for i in range(0, len(short), 100):
            mlflow.log_params(dict(short[i:i + 100]))
        tags = os.environ.get('MLFLOW_TAGS')
        if tags:
            mlflow.set_tags(json.loads(tags))
    def log(self, entry, step):
        self.mlflow.log_metrics(metrics=entry, step=step)
    def end(self, status):
        self.mlflow.end_run('FAILED' if status else 'FINISHED')
KINDS = {'wandb': Wandb, 'trackio': Trackio, 'swanlab': Swanlab, 'mlflow': Mlflow}
def failed(name, error):
    tell(failed=name, error=(str(error) or repr(error))[:1000])
for name in start['services']:
    found = importlib.util.find_spec(name)
    if found is None or found.origin is None:
        tell(missing=name)
        raise SystemExit
running, begun = {}, {}
for name in start['services']:
    try:
        service = KINDS[name]()
        begun[name] = str(service.begin(importlib.import_module(name)) or '')
        running[name] = service
    except (Exception, SystemExit) as error:
        failed(name, error)
        raise SystemExit
tell(begun=begun)
def each(work):
    for name, service in list(running.items()):
        try:
            work(service)
        except (Exception, SystemExit) as error:
            failed(name, error)
            del running[name]
status = 1  # the run is gone without a word
for line in sys.stdin:
    words = json.loads(line)
    if 'end' in words:
        status = words['end']
        break
    entry = words['entry']
    step = entry.pop('step')
    each(lambda service: service.log(dict(entry), step))
each(lambda service: service.end(status))
)";

}  // namespace longspan
