#include "common/telemetry/http_server.h"

#include <microhttpd.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <exception>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "common/base/status_macros.h"
#include "common/base/text.h"
#include "common/base/thread_pool.h"
#include "common/telemetry/log.h"
#include "common/telemetry/metric_page.h"

namespace causeway {

// Ends connections whose request, or the reading of its answer, takes too long. Thread-safe. A key
// is whatever names a connection to the one who owns it.
class ConnectionTimer {
 public:
  ConnectionTimer(absl::Duration timeout, const Clock* clock) : timeout_(timeout), clock_(clock) {}

  // Every `look_interval` of real time, connections that have had the timeout by the clock are shut
  // down: whoever owns them sees their end and closes them.
  absl::Status Start(absl::Duration look_interval) {
    return thread_.Start(look_interval, [this, look_interval] {
      EndOverdue();
      return look_interval;
    });
  }

  void Opened(const void* key, int descriptor) {
    absl::MutexLock lock(&mutex_);
    connections_[key] = {descriptor, clock_->Monotonic()};
  }
  // An answer is complete: the time begins anew.
  void Answered(const void* key) {
    absl::MutexLock lock(&mutex_);
    const auto found = connections_.find(key);
    if (found != connections_.end()) found->second.since = clock_->Monotonic();
  }
  // Before the descriptor is closed, and may become another's.
  void Closing(const void* key) {
    absl::MutexLock lock(&mutex_);
    connections_.erase(key);
  }

 private:
  struct Connection {
    int descriptor;
    absl::Duration since;
  };

  void EndOverdue() {
    const absl::Duration now = clock_->Monotonic();
    absl::MutexLock lock(&mutex_);
    for (const auto& [key, connection] : connections_) {
      if (now - connection.since >= timeout_) shutdown(connection.descriptor, SHUT_RDWR);
    }
  }

  const absl::Duration timeout_;
  const Clock* const clock_;
  absl::Mutex mutex_;
  std::map<const void*, Connection> connections_ ABSL_GUARDED_BY(mutex_);
  PeriodicThread thread_;  // Last: it uses all of the above.
};

namespace {

constexpr size_t kConnectionMemory = size_t{32} << 10;  // Holds request line, headers and buffers.
constexpr int kBacklog = 32;

// Against a page of another site that shows, reads or embeds what is served here. Scripts and
// styles come from files of this server alone.
constexpr std::pair<const char*, const char*> kHeaders[] = {
    {"Content-Security-Policy",
     "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
     "connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"},
    {"Cross-Origin-Resource-Policy", "same-origin"},
    {"Referrer-Policy", "no-referrer"},
    {"X-Content-Type-Options", "nosniff"},
    {"X-Frame-Options", "DENY"},
};

absl::Status ListenError(const std::string& address, int error) {
  const std::string reason = std::strerror(error);
  switch (error) {
    case EADDRINUSE:
      return absl::UnavailableError(
          absl::StrCat("another program listens on ", address,
                       ": choose another port, or port 0 for any that is free"));
    case EADDRNOTAVAIL:
      return absl::UnavailableError(
          absl::StrCat("no interface of this machine has the address of ", address,
                       ": use 127.0.0.1, 0.0.0.0 or one that `ip address` shows"));
    case EACCES:
      return absl::PermissionDeniedError(absl::StrCat("may not listen on ", address, " (", reason,
                                                      "): use a port of 1024 or more"));
    default:
      return absl::UnavailableError(absl::StrCat("cannot listen on ", address, ": ", reason));
  }
}

absl::Status NoResources(const std::string& address) {
  return absl::ResourceExhaustedError(
      absl::StrCat("cannot serve HTTP on ", address,
                   ": the system gives no thread or descriptor; see `ulimit -a`"));
}

int PortOf(int descriptor) {
  sockaddr_storage storage = {};
  socklen_t length = sizeof(storage);
  getsockname(descriptor, reinterpret_cast<sockaddr*>(&storage), &length);
  return storage.ss_family == AF_INET6 ? ntohs(reinterpret_cast<sockaddr_in6*>(&storage)->sin6_port)
                                       : ntohs(reinterpret_cast<sockaddr_in*>(&storage)->sin_port);
}

std::string Header(MHD_Connection* connection, const char* name) {
  const char* const value = MHD_lookup_connection_value(connection, MHD_HEADER_KIND, name);
  return value == nullptr ? "" : value;
}

}  // namespace

HttpResponse HttpResponse::Text(int status, absl::string_view text) {
  HttpResponse response;
  response.status = status;
  response.body = absl::StrCat(text, "\n");
  return response;
}

HttpResponse HttpResponse::Metrics(std::string text) {
  HttpResponse response;
  response.content_type = MetricPage::kContentType;
  response.body = std::move(text);
  return response;
}

// Callbacks of libmicrohttpd. A class, so that it is a friend of the server.
class HttpConversation {
 public:
  // Called once when the headers are there and again when the request is complete. Nothing is kept
  // between the calls but that the first one has been.
  static MHD_Result Answer(void* server, MHD_Connection* connection, const char* url,
                           const char* method, const char* /*version*/, const char* /*upload*/,
                           size_t* /*upload_bytes*/, void** seen) {
    const HttpServer& owner = *static_cast<const HttpServer*>(server);
    try {
      const bool first = *seen == nullptr;
      *seen = server;
      if (first) {
        HttpResponse refusal = Check(owner, connection, method);
        // An answer before the end of a request ends the connection: its body is never read.
        return refusal.status == 200 ? MHD_YES : Send(connection, refusal);
      }
      return Send(connection, Respond(owner, connection, url));
    } catch (const std::exception&) {
      return MHD_NO;  // No memory even for an answer: hang up.
    }
  }

  static void Notice(void* server, MHD_Connection* connection, void** /*context*/,
                     MHD_ConnectionNotificationCode code) {
    ConnectionTimer& timer = *static_cast<HttpServer*>(server)->timer_;
    if (code == MHD_CONNECTION_NOTIFY_CLOSED) return timer.Closing(connection);
    const MHD_ConnectionInfo* const descriptor =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
    if (descriptor != nullptr) timer.Opened(connection, descriptor->connect_fd);
  }

  static void Complete(void* server, MHD_Connection* connection, void** /*seen*/,
                       MHD_RequestTerminationCode code) {
    if (code != MHD_REQUEST_TERMINATED_COMPLETED_OK) return;
    static_cast<HttpServer*>(server)->timer_->Answered(connection);
  }

 private:
  // Status 200, or what is wrong with the request whatever its path.
  static HttpResponse Check(const HttpServer& owner, MHD_Connection* connection,
                            absl::string_view method) {
    if (method != MHD_HTTP_METHOD_GET && method != MHD_HTTP_METHOD_HEAD) {
      return HttpResponse::Text(405, "this server is for reading: GET and HEAD only");
    }
    const std::string length = Header(connection, MHD_HTTP_HEADER_CONTENT_LENGTH);
    if ((!length.empty() && length != "0") ||
        !Header(connection, MHD_HTTP_HEADER_TRANSFER_ENCODING).empty()) {
      return HttpResponse::Text(413, "a request to this server has no body");
    }
    // A name of somebody else's that resolves to 127.0.0.1 would make a browser on this machine
    // hand what is here to a page from there.
    const std::string host = Header(connection, MHD_HTTP_HEADER_HOST);
    if (owner.listener_.loopback() && !host.empty() && !IsLoopback(host) &&
        !IsLoopback(absl::StrCat(host, ":80"))) {
      return HttpResponse::Text(421, "this server is called localhost or 127.0.0.1");
    }
    return HttpResponse();
  }

  static HttpResponse Respond(const HttpServer& owner, MHD_Connection* connection,
                              const char* url) {
    const auto handler = owner.handlers_.find(url);
    if (handler == owner.handlers_.end()) {
      return HttpResponse::Text(
          404, absl::StrCat("nothing is served at this path; there is ", Paths(owner.handlers_)));
    }
    HttpRequest request;
    request.path = url;
    request.if_none_match = Header(connection, MHD_HTTP_HEADER_IF_NONE_MATCH);
    MHD_get_connection_values(connection, MHD_GET_ARGUMENT_KIND, &TakeArgument, &request.query);
    try {
      HttpResponse response = handler->second(request);
      if (response.status == 200 && !response.etag.empty() &&
          response.etag == request.if_none_match) {
        response.status = 304;
        response.body.clear();
      }
      return response;
    } catch (const std::exception& error) {
      return HttpResponse::Text(500, absl::StrCat("failed: ", error.what()));
    }
  }

  static MHD_Result TakeArgument(void* query, MHD_ValueKind /*kind*/, const char* key,
                                 const char* value) {
    static_cast<std::map<std::string, std::string>*>(query)->emplace(key,
                                                                     value == nullptr ? "" : value);
    return MHD_YES;
  }

  static std::string Paths(const HttpHandlers& handlers) {
    std::string paths;
    for (const auto& [path, handler] : handlers) {
      absl::StrAppend(&paths, paths.empty() ? "" : ", ", path);
    }
    return paths;
  }

  static MHD_Result Send(MHD_Connection* connection, HttpResponse& answer) {
    // libmicrohttpd copies; it never writes to what it copies from.
    MHD_Response* const response = MHD_create_response_from_buffer(
        answer.body.size(), answer.body.data(), MHD_RESPMEM_MUST_COPY);
    if (response == nullptr) return MHD_NO;
    const absl::Cleanup release = [&] { MHD_destroy_response(response); };
    for (const auto& [name, value] : kHeaders) MHD_add_response_header(response, name, value);
    MHD_add_response_header(response, MHD_HTTP_HEADER_CACHE_CONTROL, answer.cache_control.c_str());
    if (answer.status != 304) {
      MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, answer.content_type.c_str());
    }
    if (answer.status == 405) MHD_add_response_header(response, MHD_HTTP_HEADER_ALLOW, "GET, HEAD");
    if (!answer.etag.empty()) {
      MHD_add_response_header(response, MHD_HTTP_HEADER_ETAG, answer.etag.c_str());
    }
    return MHD_queue_response(connection, static_cast<unsigned>(answer.status), response);
  }
  static MHD_Result Send(MHD_Connection* connection, HttpResponse&& answer) {
    return Send(connection, answer);
  }
};

absl::StatusOr<HttpListener> HttpListener::Open(const std::string& address) {
  ASSIGN_OR_RETURN(const HostPort name, SplitHostPort(address, /*allow_any_port=*/true));
  addrinfo hints = {};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* list = nullptr;
  const int error = getaddrinfo(name.host.c_str(), name.port.c_str(), &hints, &list);
  if (error != 0) {
    return absl::NotFoundError(absl::StrCat("cannot listen on ", address, ": ", gai_strerror(error),
                                            "; use an address of this machine"));
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(list, freeaddrinfo);
  OwnedDescriptor own(socket(list->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!own.valid()) return ListenError(address, errno);
  const int descriptor = own.get();
  const int on = 1;
  const int off = 0;
  // A successor may take the port over while old connections linger.
  setsockopt(descriptor, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (list->ai_family == AF_INET6) {
    setsockopt(descriptor, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
  }
  if (bind(descriptor, list->ai_addr, list->ai_addrlen) != 0 || listen(descriptor, kBacklog) != 0) {
    return ListenError(address, errno);
  }
  return HttpListener(std::move(own), address.substr(0, address.rfind(':')));
}

HttpListener::HttpListener(OwnedDescriptor descriptor, std::string host)
    : descriptor_(std::move(descriptor)),
      port_(PortOf(descriptor_.get())),
      address_(absl::StrCat(std::move(host), ":", port_)) {}

bool HttpListener::loopback() const { return IsLoopback(address_); }

std::string HttpListener::Warning() const {
  if (loopback()) return "";
  return absl::StrCat("http://", address_,
                      " shows the run to everyone who can reach it, without encryption: let a "
                      "firewall or a proxy stand before it, or use 127.0.0.1");
}

HttpServer::HttpServer(HttpListener listener, HttpHandlers handlers)
    : listener_(std::move(listener)), handlers_(std::move(handlers)) {}

HttpServer::~HttpServer() { Stop(); }

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(HttpListener listener,
                                                              Options options) {
  std::unique_ptr<HttpServer> server(
      new HttpServer(std::move(listener), std::move(options.handlers)));
  HttpListener& port = server->listener_;
  server->timer_ = std::make_unique<ConnectionTimer>(options.request_timeout, options.clock);
  if (!server->timer_->Start(options.look_interval).ok()) return NoResources(port.address_);
  server->daemon_ = MHD_start_daemon(
      MHD_USE_EPOLL_INTERNAL_THREAD | MHD_USE_ITC, /*port=*/0, nullptr, nullptr,
      &HttpConversation::Answer, server.get(), MHD_OPTION_LISTEN_SOCKET, port.descriptor_.get(),
      MHD_OPTION_CONNECTION_LIMIT, static_cast<unsigned>(options.max_connections),
      MHD_OPTION_CONNECTION_TIMEOUT,
      static_cast<unsigned>(absl::ToInt64Seconds(options.idle_timeout)),
      MHD_OPTION_PER_IP_CONNECTION_LIMIT,
      static_cast<unsigned>(options.max_connections_per_address), MHD_OPTION_NOTIFY_CONNECTION,
      &HttpConversation::Notice, server.get(), MHD_OPTION_NOTIFY_COMPLETED,
      &HttpConversation::Complete, server.get(), MHD_OPTION_CONNECTION_MEMORY_LIMIT,
      kConnectionMemory, MHD_OPTION_STRICT_FOR_CLIENT, 1, MHD_OPTION_END);
  if (server->daemon_ == nullptr) return NoResources(port.address_);
  port.descriptor_.Release();  // The daemon closes it.
  return server;
}

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::StartAndSay(
    HttpListener listener, HttpHandlers handlers, absl::string_view what, FileSystem& file_system,
    const std::string& address_file) {
  const std::string address = listener.address();
  const std::string warning = listener.Warning();
  if (!warning.empty()) Log().warn("{}", warning);
  Options options;
  options.handlers = std::move(handlers);
  ASSIGN_OR_RETURN(std::unique_ptr<HttpServer> http,
                   Start(std::move(listener), std::move(options)));
  Log().info("http://{}{}", address, std::string(what));
  if (!address_file.empty()) {
    RETURN_IF_ERROR(WriteFileAtomically(file_system, address_file, absl::string_view(address)));
  }
  return http;
}

HttpListener HttpServer::Release() {
  listener_.descriptor_.Reset(MHD_quiesce_daemon(daemon_));
  Stop();
  return std::move(listener_);
}

void HttpServer::Stop() {
  if (daemon_ == nullptr) return;
  MHD_stop_daemon(daemon_);
  daemon_ = nullptr;
}

}  // namespace causeway
