#include "longspan/rollouts/http.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <chrono>
#include <thread>

#include "longspan/base/user_error.h"
#include "longspan/testing/tiny_server.h"

namespace longspan {
namespace {

TEST_CASE("http: answers in the order of the requests, a bounded number at a time") {
  TinyServer server([](const std::string& request) {
    std::this_thread::sleep_for(std::chrono::milliseconds(request.ends_with("0") ? 60 : 20));
    return with_status("200 OK", request.starts_with("POST /path HTTP/1.1")
                                     ? "post " + request.substr(request.find("\r\n\r\n") + 4)
                                     : "get");
  });
  std::vector<HttpRequest> requests;
  for (int i = 0; i < 9; ++i) requests.push_back({server.url, std::to_string(i)});
  requests.push_back({server.url, std::nullopt});
  const auto answers = answers_of(requests, {.at_once = 3}, {});
  REQUIRE(answers);
  for (int i = 0; i < 9; ++i) CHECK((*answers)[i]->body == fmt::format("post {}", i));
  CHECK((*answers)[9]->body == "get");
  CHECK(server.most_open <= 3);
  CHECK(server.most_open >= 2);
}

TEST_CASE("http: failures name the URL, and say whether they may pass") {
  std::string answer;
  TinyServer server([&](const std::string&) { return answer; });
  const auto one = [&](HttpLimits limits = {}) {
    return *(*answers_of({{server.url, "{}"}}, limits, {}))[0];
  };
  answer = with_status("404 Not Found", "no such model");
  CHECK_FALSE(one().may_pass);
  CHECK_THROWS_WITH_AS(body_of({server.url, "{}"}, {}, {}),
                       (server.url + ": status 404, no such model").c_str(), UserError);
  answer = with_status("503 Busy", "");
  CHECK(one().may_pass);
  answer = with_status("429 Too Many", "");
  CHECK(one().may_pass);
  answer = "HTTP/1.1 302 Found\r\nLocation: /other\r\nContent-Length: 0\r\n\r\n";
  CHECK(one().status == 302);
  answer = with_status("200 OK", std::string(1000, 'x'));
  CHECK(one({.most_bytes = 999}).problem == "the answer has more than 999 bytes");
  CHECK(one({.most_bytes = 1000}).is_good());
  answer = "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf";
  CHECK(one().problem == "the connection broke");
  CHECK(one().may_pass);
  answer = "garbage\r\n\r\n";
  CHECK(one().problem.starts_with("the answer is not HTTP"));
  answer = "";
  CHECK(one().may_pass);
}

TEST_CASE("http: each request has the bearer token, which a failure does not show") {
  TinyServer server([](const std::string& request) {
    const size_t at = request.find("earer ");
    return with_status("403 Forbidden",
                       at == std::string::npos ? "none" : request.substr(at, 14) + "is wrong");
  });
  for (const std::optional<std::string>& json : {std::optional<std::string>("{}"), {}}) {
    const HttpRequest request{server.url, json, "t0ken-1"};
    const HttpAnswer answer = *(*answers_of({request}, {}, {}))[0];
    CHECK(answer.body == "earer t0ken-1\ris wrong");
    CHECK(http_failure(request, answer).find("earer ...") != std::string::npos);
    CHECK(http_failure(request, answer).find("t0ken") == std::string::npos);
    CHECK((*answers_of({{server.url, json}}, {}, {}))[0]->body == "none");
  }
}

TEST_CASE("http: after a failure that may pass, no further request is sent") {
  TinyServer server([](const std::string&) { return with_status("500 Error", ""); });
  const auto answers = answers_of({{server.url, "1"}, {server.url, "2"}}, {}, {});
  CHECK((*answers)[0]->status == 500);
  CHECK_FALSE((*answers)[1].has_value());
}

TEST_CASE("http: no server, a slow server, a stop, wrong addresses") {
  std::string gone;
  {
    TinyServer server([](const std::string&) { return ""; });
    gone = server.url;
  }
  const auto refused = *(*answers_of({{gone, "{}"}}, {}, {}))[0];
  CHECK(refused.problem == "connection refused");
  CHECK(refused.may_pass);

  TinyServer slow([](const std::string&) {
    std::this_thread::sleep_for(std::chrono::milliseconds(600));
    return with_status("200 OK", "late");
  });
  const auto late = *(*answers_of({{slow.url, "{}"}}, {.total_seconds = 0.2}, {}))[0];
  CHECK(late.problem == "no whole answer within 0.2 s");
  const auto begin = std::chrono::steady_clock::now();
  CHECK_FALSE(answers_of({{slow.url, "{}"}}, {}, [] { return true; }).has_value());
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::milliseconds(500));

  CHECK_THROWS_WITH_AS(answers_of({{"https://host/", "{}"}}, {}, {}),
                       doctest::Contains("https is not supported"), UserError);
  for (const char* url : {"host:80/x", "", "ftp://host/", "http://"}) {
    CHECK_THROWS_AS(answers_of({{url, "{}"}}, {}, {}), UserError);
  }
}

}  // namespace
}  // namespace longspan
