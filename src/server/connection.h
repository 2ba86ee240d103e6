// One TCP connection: requests in, answers out, one at a time. Internal to src/server, and with server.cc the
// only place that knows Asio and Beast.
//
//   kHead --header complete--> kBody --body complete--> kBusy --answer sent--> kHead (keep-alive) or kLinger
//
// One read is always outstanding, also while an answer is being made: that is how a client that leaves is
// noticed. What a client pipelines meanwhile waits in the buffer; beyond a bound it gets 400 instead of its
// answer, or the end of its stream.
#pragma once

#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <chrono>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <variant>

#include "contract/slo.h"
#include "server/arriving_body.h"
#include "server/generation.h"
#include "server/http_message.h"
#include "server/router.h"
#include "server/server_context.h"

namespace kvasir {

// Used on the I/O thread. The context keeps it alive until forget(), and its handlers do after that.
class Connection final : public ResponseChannel, public std::enable_shared_from_this<Connection> {
 public:
  Connection(boost::asio::ip::tcp::socket socket, ServerContext* context);

  void start();
  // Answers with the error and closes: there is no place for it.
  void refuse(const ApiError& error);
  // Closes now if no answer is on its way, else after it.
  void close_when_done();
  void close();

  void respond(const HttpResponse& response) override;
  void begin_stream() override;
  void stream(std::string_view bytes) override;
  void end_stream() override;
  size_t unsent_bytes() const override { return out_.size() + in_flight_.size() - in_flight_sent_; }
  void abandon_slow_reader() override;
  void on_failure(const char* what) override { on_exception(what); }

 private:
  enum class Phase { kHead, kBody, kBusy, kLinger, kClosed };
  enum class Answer { kNone, kStreaming, kComplete };
  using Parser = boost::beast::http::request_parser<ArrivingBody>;
  using Outcome = std::variant<PreparedRequest, ApiError>;
  struct Job;  // what a worker does for this connection

  // Runs a step of this connection; an exception ends its request, and nothing else.
  template <typename F>
  void guarded(F step) {
    try {
      step();
    } catch (const std::exception& e) {
      on_exception(e.what());
    }
  }
  void on_exception(const char* what);

  void read_more();
  void refuse_read_ahead();
  void on_read(boost::system::error_code ec, size_t bytes);
  void on_end_of_input();
  void advance();
  bool parse_head();
  bool parse_body();
  bool reserve_arrived();
  void on_head();
  void refuse_by_head(const HttpResponse& response);
  void fail_parse(boost::system::error_code ec);
  void fail(int status, std::string message);
  bool early_refusal();
  void dispatch();
  void generate();
  void on_prepared(Job& job);
  void reset_request();
  void next_request();
  void drop_generation();
  void end_exchange();

  void send(std::string_view bytes);
  void start_write();
  void on_written(boost::system::error_code ec, size_t bytes);
  void on_sent_all();
  void linger();

  void set_deadline(Nanos timeout);
  void on_deadline();
  void arm_body_deadline();
  void on_body_deadline();
  void arm_ping();
  void ping();

  // Constant after construction.
  boost::asio::ip::tcp::socket socket_;
  ServerContext* const context_;

  Phase phase_ = Phase::kHead;
  boost::asio::steady_timer deadline_;
  boost::asio::steady_timer write_deadline_;
  boost::asio::steady_timer ping_timer_;

  // Reading.
  boost::beast::flat_buffer buffer_;
  std::optional<Parser> parser_;
  bool reading_ = false;
  bool head_begun_ = false;
  bool end_of_input_ = false;
  bool closing_ = false;  // the server stops

  // The exchange in progress.
  Route route_;
  ExchangeInfo info_;
  Slo header_slo_;  // what the headers ask for
  Answer answer_ = Answer::kNone;
  BodyReservation body_;                             // until a job takes it over
  std::chrono::steady_clock::time_point body_ends_;  // at the latest
  uint64_t body_seen_ = 0;                           // bytes of it, when its rate was last looked at
  bool counted_ = false;                             // among the requests that wait_idle() waits for
  bool generating_ = false;                          // from the body's end until the answer is complete
  std::shared_ptr<Job> job_;
  std::shared_ptr<Generation> generation_;
  std::chrono::steady_clock::time_point last_stream_write_;

  // Writing.
  std::string out_;
  std::string in_flight_;
  size_t in_flight_sent_ = 0;
  bool writing_ = false;
  uint64_t writes_ = 0;  // begun or ended so far: tells a timer whether its own write still waits
};

}  // namespace kvasir
