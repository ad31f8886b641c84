// A small HTTP/1.1 server for what people and their tools read: metrics, health, a status page.
// It answers GET and HEAD of exactly the paths that it was given, takes no bodies and writes
// nothing. Whoever reaches its port may read everything: it knows neither TLS nor passwords, so it
// belongs on loopback, or behind something that knows them.
//
// GNU libmicrohttpd does the protocol: one thread waits on all connections, so that browsers that
// keep theirs open, and slow readers, cost a slot and no thread.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/base/descriptor.h"
#include "common/base/file_system.h"

struct MHD_Daemon;

namespace causeway {

class ConnectionTimer;

struct HttpRequest {
  std::string path;  // Decoded, without the query.
  // Decoded; of a name that stands there more than once, the first. "" for one without '='.
  std::map<std::string, std::string> query;
  std::string if_none_match;  // The header of this name, or "".
};

struct HttpResponse {
  int status = 200;
  std::string content_type = "text/plain; charset=utf-8";
  std::string body;
  std::string etag;  // With quotes, for If-None-Match; "" sends none.
  std::string cache_control = "no-store";

  // A text for people, ended by a line break.
  static HttpResponse Text(int status, absl::string_view text);
  // A MetricPage's.
  static HttpResponse Metrics(std::string text);
};

// Called on the server's thread, one request at a time: return within milliseconds. What it throws
// becomes status 500.
using HttpHandler = std::function<HttpResponse(const HttpRequest&)>;

// By path, such as "/metrics". Other paths are answered with 404, other methods with 405.
using HttpHandlers = std::map<std::string, HttpHandler>;

// A port that is taken and not yet served: whoever connects waits. A program opens it first, so
// that a taken port refuses its start before anything else has happened.
class HttpListener {
 public:
  // Takes HOST:PORT; port 0: any free one. INVALID_ARGUMENT for what is no address, NOT_FOUND for a
  // host without one, UNAVAILABLE if it is not here now or its port is taken, PERMISSION_DENIED.
  static absl::StatusOr<HttpListener> Open(const std::string& address);

  int port() const { return port_; }
  // HOST:PORT with the port in use.
  const std::string& address() const { return address_; }
  // Whether nobody but this machine can reach it.
  bool loopback() const;
  // For the log, if others can; else "".
  std::string Warning() const;

 private:
  friend class HttpServer;
  HttpListener(OwnedDescriptor descriptor, std::string host);

  OwnedDescriptor descriptor_;  // -1: moved away, or a server's.
  int port_;
  std::string address_;
};

class HttpServer {
 public:
  struct Options {
    HttpHandlers handlers;
    int max_connections = 256;  // Further ones wait until one of these is closed.
    // Most connections of one address (a proxy's are all its clients'); others are closed at once.
    int max_connections_per_address = 16;
    // A connection on which nothing moves for so long is closed. Whole seconds, 1 or more.
    absl::Duration idle_timeout = absl::Seconds(30);
    // And so is one that, since it was opened or had its last answer, took so long over the next
    // request and its answer: a client that sends or reads a byte now and then holds no place.
    absl::Duration request_timeout = absl::Seconds(30);
    absl::Duration look_interval = absl::Seconds(1);  // Between two looks for such connections.
    const Clock* clock = Clock::Real();               // For request_timeout. Outlives the server.
  };

  // RESOURCE_EXHAUSTED if the system gives no thread.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(HttpListener listener, Options options);
  // The same, and says so: `what` is there, after "http://HOST:PORT". `address_file` receives
  // HOST:PORT; empty: none.
  static absl::StatusOr<std::unique_ptr<HttpServer>> StartAndSay(HttpListener listener,
                                                                 HttpHandlers handlers,
                                                                 absl::string_view what,
                                                                 FileSystem& file_system,
                                                                 const std::string& address_file);
  ~HttpServer();  // Stops.
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  // Closes the port and all connections. No handler runs once it has returned. At once, but for
  // the handler that runs.
  void Stop();
  // The same, but gives the port back, for another server: who connects meanwhile waits. Once, of a
  // server that has not stopped.
  HttpListener Release();

 private:
  friend class HttpConversation;
  HttpServer(HttpListener listener, HttpHandlers handlers);

  HttpListener listener_;
  const HttpHandlers handlers_;
  std::unique_ptr<ConnectionTimer> timer_;  // Outlives the daemon, which tells it.
  MHD_Daemon* daemon_ = nullptr;
};

}  // namespace causeway
