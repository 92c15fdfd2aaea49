#include "longspan/rollouts/http.h"

#include <fmt/format.h>

#include <memory>
#include <utility>

#include "longspan/base/user_error.h"
#include "longspan/text/rust_call.h"
#include "longspan/text/shown.h"

namespace longspan {
namespace {

constexpr uint64_t kPollMilliseconds = 100;
constexpr size_t kShownOfBody = 200;

struct FreeHttp {
  void operator()(LsrHttp* http) const { lsr_http_free(http); }
};

/// Returns the text with dots in place of the secret.
std::string without_secret(std::string text, const std::string& secret) {
  if (secret.empty()) return text;
  for (size_t at = 0; (at = text.find(secret, at)) != std::string::npos;) {
    text.replace(at, secret.size(), "...");
    at += 3;
  }
  return text;
}

}  // namespace

std::optional<std::vector<std::optional<HttpAnswer>>> answers_of(
    const std::vector<HttpRequest>& requests, const HttpLimits& limits,
    const std::function<bool()>& stops) {
  const std::unique_ptr<LsrHttp, FreeHttp> http(lsr_http_new());
  std::vector<std::optional<HttpAnswer>> answers(requests.size());
  size_t num_sent = 0, num_ended = 0;
  bool goes_on = true;
  for (;;) {
    while (goes_on && num_sent < requests.size() &&
           num_sent - num_ended < static_cast<size_t>(limits.at_once)) {
      const HttpRequest& request = requests[num_sent];
      const LsrHttpRequest sent{
          .url = rust_view(request.url),
          .body = rust_view(request.json ? *request.json : std::string_view()),
          .bearer = rust_view(request.bearer),
          .is_post = request.json.has_value(),
          .connect_seconds = limits.connect_seconds,
          .total_seconds = limits.total_seconds,
          .most_bytes = static_cast<uint64_t>(limits.most_bytes)};
      rust_call(lsr_http_start, http.get(), num_sent, &sent);
      ++num_sent;
    }
    if (num_ended == num_sent) return answers;
    bool has_ended = false;
    LsrHttpAnswer ended{};
    rust_call(lsr_http_wait, http.get(), kPollMilliseconds, &has_ended, &ended);
    if (has_ended) {
      HttpAnswer& answer = answers[ended.key].emplace();
      answer.status = ended.status;
      answer.body = take_rust_string(ended.body);
      answer.problem = take_rust_string(ended.problem);
      answer.may_pass = ended.may_pass || ended.status == 429 || ended.status >= 500;
      if (answer.may_pass) goes_on = false;
      ++num_ended;
    }
    if (stops && stops()) return std::nullopt;
  }
}

std::string http_failure(const HttpRequest& request, const HttpAnswer& answer) {
  if (answer.status == 0) return fmt::format("{}: {}", request.url, answer.problem);
  std::string text = fmt::format("{}: status {}", request.url, answer.status);
  if (!answer.body.empty()) {
    text += ", " + shortened(without_secret(answer.body, request.bearer), kShownOfBody);
  }
  return text;
}

std::optional<std::string> body_of(const HttpRequest& request, const HttpLimits& limits,
                                   const std::function<bool()>& stops) {
  auto answers = answers_of({request}, limits, stops);
  if (!answers) return std::nullopt;
  HttpAnswer& answer = answers->front().value();
  if (!answer.is_good()) throw UserError(http_failure(request, answer));
  return std::move(answer.body);
}

}  // namespace longspan
