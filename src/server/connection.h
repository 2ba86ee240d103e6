// One TCP connection: requests in, answers out, one at a time. Internal to src/server, and with server.cc the
// only place that uses Asio. request_head.h and request_body.h read what arrives. It finds the endpoint of a
// request in the table (endpoints.h) and knows no endpoint itself.
//
// Over TLS a handshake comes first (kHandshake).
//
//   kHead --head complete--> kBody --body complete--> kBusy --answer sent--> kHead (keep-alive) or kLinger
//
// In all phases but kBusy it waits for its client, and may be closed to make way for another connection; so
// it does in kBusy once the answer is complete.
//
// A read is always outstanding, also while an answer is being made, so that a disconnect is noticed. Bytes
// that a client pipelines meanwhile wait in the buffer. If they exceed a bound, the client gets 400 in place
// of its answer, or its stream is closed.
#pragma once

#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <chrono>
#include <exception>
#include <memory>
#include <optional>
#include <string>

#include "server/body_reservation.h"
#include "server/exchange.h"
#include "server/exchange_record.h"
#include "server/http_message.h"
#include "server/request_body.h"
#include "server/request_head.h"
#include "server/router.h"
#include "server/server_context.h"
#include "server/socket_stream.h"

namespace kvasir {

// Used on the I/O thread. The context owns it until forget(); then its pending completion handlers do.
class Connection final : public Exchange, public std::enable_shared_from_this<Connection> {
 public:
  // `tls` is null: plain TCP.
  Connection(boost::asio::ip::tcp::socket socket, ServerContext* context, const TlsContext& tls = nullptr);

  void start();
  // Answers with the error and closes, because too many connections are open; over TLS it only closes.
  void refuse(const ApiError& error);
  // Closes now, or after the answer that is on its way.
  void close_when_done();
  // The server drains: an answer that has no end of its own gets one.
  void end_endless();
  // Closes for the sake of another connection.
  void make_way();
  void close();

  const Request& request() const override { return request_; }
  const ServerContext& server() const override { return *context_; }
  KeyLease& key_lease() override { return key_lease_; }
  using Exchange::run_on_worker;
  void run_on_worker(Work work, bool takes_long) override;
  void attach(std::shared_ptr<Activity> activity) override;

  void respond(const HttpResponse& response) override;
  void begin_stream(std::string_view last_words) override;
  void stream(std::string_view bytes) override;
  void end_stream() override;
  size_t unsent_bytes() const override {
    return out_.size() + in_flight_.size() - in_flight_sent_ + static_body_.size();
  }
  void abandon_slow_reader() override;
  ExchangeRecord& record() override { return record_; }
  void on_failure(const std::exception& what) override { on_exception(what); }

 private:
  enum class Phase { kHandshake, kHead, kBody, kBusy, kLinger, kClosed };
  enum class Answer { kNone, kStreaming, kComplete };
  struct Job;  // work on a worker's thread

  // Runs a step of this connection. An exception ends only its request.
  template <typename F>
  void guarded(F step) {
    try {
      step();
    } catch (const std::exception& e) {
      on_exception(e);
    }
  }
  void on_exception(const std::exception& what);

  void enter(Phase phase);
  // The client got on by so much with its body, or with taking its complete answer.
  void count_moved(uint64_t bytes);
  void on_handshake(boost::system::error_code ec);
  void read_more();
  void refuse_read_ahead();
  void on_read(boost::system::error_code ec, size_t bytes);
  void on_end_of_input();
  void advance();
  std::string_view arrived() const;
  void take(size_t bytes);
  bool parse_head();
  bool take_head();
  bool parse_body();
  bool reserve_arrived();
  void on_head();
  void expect_body();
  bool answer_browser();
  std::optional<HttpResponse> refusal_by_head(const Route& route);
  bool has_body() const { return head_.chunked || head_.content_length.value_or(0) > 0; }
  uint64_t body_limit() const;
  void fail_too_large();
  void fail_body();
  void fail(int status, std::string message);
  void fail(const ApiError& error);
  void reset_request();
  void next_request();

  void run_handler();
  std::optional<ApiError> refusal_if_not_ready() const;
  // The answer is being made by a worker or an activity from now on.
  void begin_work();
  void on_work_done(Job& job);
  // Aborts the job and the activity of the request, and releases their memory.
  void abandon_work();
  // Ends the work of the request. Without a complete answer it counts as this status: 499 unless the fault is
  // ours.
  void stop_work(int status = 499);
  // The answer was sent, or the connection is closed: releases what the request holds.
  void end_exchange();
  // Whose it is, and for whom it is traced.
  void begin_record();
  // Tells the access log and the exporter of spans, once.
  void tell_end();
  // The line names the request and its key. Throws nothing.
  static void log_fault(std::string_view what, const std::exception& fault, std::string_view id,
                        std::string_view key);

  void send(std::string_view bytes);
  // Ends an answer that has begun without memory of its own: sends what is left of it, or the last words of a
  // stream, and closes; what the socket does not take at once, and TLS, end in a reset.
  void finish_now();
  void start_write();
  // Counts these bytes. True: since the last check the client took what waited for it too slowly.
  bool reads_too_slowly(size_t bytes);
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
  SocketStream stream_;
  boost::asio::ip::tcp::endpoint peer_;
  ServerContext* const context_;

  Phase phase_ = Phase::kHandshake;
  uint64_t moved_ = 0;  // see count_moved(): since the context was last told
  boost::asio::steady_timer deadline_;
  boost::asio::steady_timer write_deadline_;
  boost::asio::steady_timer ping_timer_;

  // Reading.
  boost::beast::flat_buffer buffer_;
  size_t taken_ = 0;  // of its bytes
  HeadScanner scanner_;
  std::string head_text_;
  RequestHead head_;  // views of head_text_
  RequestBody arriving_;
  bool reading_ = false;
  bool head_begun_ = false;
  bool end_of_input_ = false;
  bool closing_ = false;  // the server is stopping

  // The exchange in progress.
  const Endpoint* endpoint_ = nullptr;  // null until the head is complete
  Request request_;
  ExchangeInfo info_;
  ExchangeRecord record_;
  KeyLease key_lease_;
  Answer answer_ = Answer::kNone;
  BodyReservation reserved_;                         // until a job takes it
  std::chrono::steady_clock::time_point body_ends_;  // the deadline of the whole body
  uint64_t body_seen_ = 0;                           // its bytes when its rate was last checked
  bool told_ = false;                                // tell_end() was called for it
  bool counted_ = false;                             // wait_idle() waits for this exchange
  bool working_ = false;                             // a worker or an activity makes the answer
  std::shared_ptr<Job> job_;                         // the worker's part, null if it is done
  std::shared_ptr<Activity> activity_;
  std::chrono::steady_clock::time_point last_stream_write_;
  bool pinged_ = false;  // and nothing was sent since

  // Writing.
  std::string out_;
  std::string in_flight_;
  size_t in_flight_sent_ = 0;
  std::string_view static_body_;  // what follows out_ of the answer
  std::chrono::steady_clock::time_point rate_since_;
  uint64_t rate_bytes_ = 0;
  std::string last_words_;  // of a stream, as they are sent
  bool finishing_ = false;  // finish_now() was called, and may wait for the write that is pending
  bool writing_ = false;
  bool answer_begun_ = false;  // the socket has got a part of the answer
  uint64_t writes_ = 0;        // begun or ended so far, by which a timer knows whether its write is pending
};

}  // namespace kvasir
