// Requests to HTTP servers. No torch.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace longspan {

struct HttpRequest {
  std::string url;                  // http://HOST:PORT/PATH
  std::optional<std::string> json;  // POST of this body; nullopt: GET
  std::string bearer = {};          // secret token of the header Authorization; empty: none
};

struct HttpLimits {
  double connect_seconds = 10;
  double total_seconds = 600;             // of a request with its answer
  int64_t most_bytes = int64_t{1} << 28;  // of an answer
  int64_t at_once = 1;                    // requests at a time
};

struct HttpAnswer {
  int64_t status = 0;  // 0: no whole answer came, and `problem` says why
  std::string body;
  std::string problem;  // a clause, e.g. "connection refused"
  /// The failure may be temporary: a failed connection, a time limit, status 429 or 5xx.
  bool may_pass = false;
  bool is_good() const { return status >= 200 && status < 300; }
};

/// Sends the requests, at most limits.at_once at a time, and returns their answers in the order of
/// the requests. `stops` is called at least every 200 ms; if it returns true, the requests in
/// flight are abandoned and the result is nullopt. After a temporary failure (may_pass), no further
/// request is sent; unsent requests have no answer. Throws UserError, with the URL, for a URL that
/// is not http://HOST.
std::optional<std::vector<std::optional<HttpAnswer>>> answers_of(
    const std::vector<HttpRequest>& requests, const HttpLimits& limits,
    const std::function<bool()>& stops);

/// Returns the reason of a failed answer, as a sentence that begins with the URL and ends without a
/// full stop. The sentence has the beginning of the body, with the bearer token hidden.
std::string http_failure(const HttpRequest& request, const HttpAnswer& answer);

/// Returns the body of a good answer; nullopt: `stops` returned true. Throws UserError, with the
/// URL, for any other answer.
std::optional<std::string> body_of(const HttpRequest& request, const HttpLimits& limits,
                                   const std::function<bool()>& stops);

}  // namespace longspan
