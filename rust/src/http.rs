//! HTTP requests for the C interface, each in a thread of its own. The caller passes handles that
//! lsr_http_new made.

use std::io::ErrorKind;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::mpsc::{channel, Receiver, RecvTimeoutError, Sender};
use std::time::Duration;

use ureq::{Agent, Timeout};

use crate::{guard, owned, panic_text, Owned, Result, UserError, View};

pub struct Http {
    sender: Sender<Ended>,
    ended: Receiver<Ended>,
}

struct Ended {
    key: u64,
    result: std::result::Result<(u16, Vec<u8>), Failure>,
}

struct Failure {
    problem: String,
    may_pass: bool,
}

#[repr(C)]
pub struct Request {
    url: View,
    body: View,
    bearer: View,
    is_post: bool,
    connect_seconds: f64,
    total_seconds: f64,
    most_bytes: u64,
}

#[repr(C)]
pub struct Answer {
    key: u64,
    status: i32,
    may_pass: bool,
    body: Owned<u8>,
    problem: Owned<u8>,
}

/// A request, without borrowed memory.
struct Job {
    url: String,
    body: Option<Vec<u8>>,
    bearer: Option<String>,
    connect: Duration,
    total: Duration,
    most_bytes: u64,
}

fn check_url(url: &str) -> Result<()> {
    let refused = |why: &str| Err(UserError(format!("{url}: {why}")));
    match url.parse::<ureq::http::Uri>() {
        Ok(uri) if uri.scheme_str() == Some("http") && uri.host().is_some_and(|h| !h.is_empty()) => Ok(()),
        Ok(uri) if uri.scheme_str() == Some("https") => {
            refused("https is not supported; give an http:// address, for example of a local proxy")
        }
        _ => refused("this is no address; give http://HOST:PORT"),
    }
}

/// Says why no whole answer came. Connections that fail may succeed later.
fn failure_of(error: ureq::Error, job: &Job) -> Failure {
    let lasting = |problem: String| Failure { problem, may_pass: false };
    let passing = |problem: &str| Failure { problem: problem.into(), may_pass: true };
    match error {
        ureq::Error::Timeout(Timeout::Connect | Timeout::Resolve) => {
            passing(&format!("no connection within {} s", job.connect.as_secs_f64()))
        }
        ureq::Error::Timeout(_) => {
            passing(&format!("no whole answer within {} s", job.total.as_secs_f64()))
        }
        ureq::Error::HostNotFound => passing("host not found"),
        ureq::Error::ConnectionFailed => passing("connection failed"),
        ureq::Error::BodyExceedsLimit(_) => {
            lasting(format!("the answer has more than {} bytes", job.most_bytes))
        }
        ureq::Error::Io(error) => match error.kind() {
            ErrorKind::ConnectionRefused => passing("connection refused"),
            ErrorKind::ConnectionReset | ErrorKind::BrokenPipe | ErrorKind::UnexpectedEof => {
                passing("the connection broke")
            }
            _ => passing(&error.to_string()),
        },
        ureq::Error::Protocol(error) => lasting(format!("the answer is not HTTP: {error}")),
        error => lasting(error.to_string()),
    }
}

fn run(job: &Job) -> std::result::Result<(u16, Vec<u8>), Failure> {
    // Each request has a connection of its own: a server may close an idle one at any time.
    let agent: Agent = Agent::config_builder()
        .proxy(None)
        .http_status_as_error(false)
        .max_redirects(0)
        .max_redirects_will_error(false)
        .max_idle_connections(0)
        .timeout_connect(Some(job.connect))
        .timeout_resolve(Some(job.connect))
        .timeout_global(Some(job.total))
        .user_agent("longspan")
        .build()
        .into();
    let answer = match &job.body {
        Some(body) => {
            let mut request = agent.post(&job.url).header("Content-Type", "application/json");
            if let Some(bearer) = &job.bearer {
                request = request.header("Authorization", bearer);
            }
            request.send(&body[..])
        }
        None => {
            let mut request = agent.get(&job.url);
            if let Some(bearer) = &job.bearer {
                request = request.header("Authorization", bearer);
            }
            request.call()
        }
    };
    let mut answer = answer.map_err(|error| failure_of(error, job))?;
    let status = answer.status().as_u16();
    let body = answer.body_mut().with_config().limit(job.most_bytes).read_to_vec();
    Ok((status, body.map_err(|error| failure_of(error, job))?))
}

impl Http {
    fn start(&self, key: u64, job: Job) -> Result<()> {
        check_url(&job.url)?;
        let sender = self.sender.clone();
        let body = move || {
            let result = catch_unwind(AssertUnwindSafe(|| run(&job))).unwrap_or_else(|panic| {
                Err(Failure { problem: panic_text(panic), may_pass: false })
            });
            // Nobody may wait any more.
            let _ = sender.send(Ended { key, result });
        };
        match std::thread::Builder::new().name("http".into()).spawn(body) {
            Ok(_) => Ok(()),
            Err(error) => Err(UserError(format!("a thread for a request cannot start: {error}"))),
        }
    }
}

#[no_mangle]
pub extern "C" fn lsr_http_new() -> *mut Http {
    let (sender, ended) = channel();
    Box::into_raw(Box::new(Http { sender, ended }))
}

#[no_mangle]
pub unsafe extern "C" fn lsr_http_start(
    http: *const Http,
    key: u64,
    request: *const Request,
    error: *mut Owned<u8>,
) -> i32 {
    guard(error, || {
        let request = &*request;
        let job = Job {
            url: request.url.text().into_owned(),
            body: request.is_post.then(|| request.body.bytes().to_vec()),
            bearer: (!request.bearer.bytes().is_empty())
                .then(|| format!("Bearer {}", request.bearer.text())),
            connect: Duration::from_secs_f64(request.connect_seconds),
            total: Duration::from_secs_f64(request.total_seconds),
            most_bytes: request.most_bytes,
        };
        (*http).start(key, job)
    })
}

#[no_mangle]
pub unsafe extern "C" fn lsr_http_wait(
    http: *const Http,
    milliseconds: u64,
    has_ended: *mut bool,
    answer: *mut Answer,
    error: *mut Owned<u8>,
) -> i32 {
    guard(error, || {
        let ended = match (*http).ended.recv_timeout(Duration::from_millis(milliseconds)) {
            Ok(ended) => ended,
            Err(RecvTimeoutError::Timeout) => {
                has_ended.write(false);
                return Ok(());
            }
            Err(RecvTimeoutError::Disconnected) => panic!("the sender belongs to the handle"),
        };
        let (status, may_pass, body, problem) = match ended.result {
            Ok((status, body)) => (status.into(), false, body, String::new()),
            Err(failure) => (0, failure.may_pass, Vec::new(), failure.problem),
        };
        has_ended.write(true);
        answer.write(Answer {
            key: ended.key,
            status,
            may_pass,
            body: Owned::new(body),
            problem: owned(problem),
        });
        Ok(())
    })
}

#[no_mangle]
pub unsafe extern "C" fn lsr_http_free(http: *mut Http) {
    drop(Box::from_raw(http));
}
