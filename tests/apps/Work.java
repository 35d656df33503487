// Java's ways to use sockets: java.net with and without a time-out, channels with
// a selector, and its HTTP server and client.  Prints what must be the same over
// every transport.
//
// usage: java Work.java ADDRESS PORT (and the two ports above it)

import com.sun.net.httpserver.HttpServer;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.InputStream;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.net.SocketTimeoutException;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.ByteBuffer;
import java.nio.channels.SelectionKey;
import java.nio.channels.Selector;
import java.nio.channels.ServerSocketChannel;
import java.nio.channels.SocketChannel;
import java.security.MessageDigest;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.List;
import java.util.Random;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;

public class Work {
  static String hex(MessageDigest digest) {
    return HexFormat.of().formatHex(digest.digest()).substring(0, 16);
  }

  // Threads and streams; each client reads with a time-out.
  static String blocking(InetAddress address, int port) throws Exception {
    final int clients = 8, rounds = 1500;
    ExecutorService pool = Executors.newCachedThreadPool();
    List<Future<String>> done = new ArrayList<>();
    try (ServerSocket server = new ServerSocket(port, 50, address)) {
      pool.submit(() -> {
        for (int i = 0; i < clients; ++i) {
          Socket socket = server.accept();
          socket.setTcpNoDelay(true);
          pool.submit(() -> {
            try (socket; DataInputStream in = new DataInputStream(socket.getInputStream())) {
              DataOutputStream out = new DataOutputStream(socket.getOutputStream());
              for (int k = 0; k < rounds; ++k) {
                byte[] bytes = new byte[in.readInt()];
                in.readFully(bytes);
                out.writeInt(bytes.length);
                out.write(bytes);
              }
            }
            return null;
          });
        }
        return null;
      });
      for (int i = 0; i < clients; ++i) {
        final int seed = i;
        done.add(pool.submit(() -> {
          Random random = new Random(seed);
          MessageDigest digest = MessageDigest.getInstance("SHA-256");
          try (Socket socket = new Socket(address, port)) {
            socket.setTcpNoDelay(true);
            // Nobody has asked: nothing can come.
            socket.setSoTimeout(20);
            String late = "no";
            try {
              socket.getInputStream().read();
            } catch (SocketTimeoutException e) {
              late = "yes";
            }
            socket.setSoTimeout(60000);
            DataInputStream in = new DataInputStream(socket.getInputStream());
            DataOutputStream out = new DataOutputStream(socket.getOutputStream());
            for (int k = 0; k < rounds; ++k) {
              byte[] bytes = new byte[random.nextInt(k % 100 == 0 ? 100000 : 300)];
              random.nextBytes(bytes);
              out.writeInt(bytes.length);
              out.write(bytes);
              byte[] back = new byte[in.readInt()];
              in.readFully(back);
              digest.update(back);
            }
            return late + " " + hex(digest);
          }
        }));
      }
      StringBuilder all = new StringBuilder();
      for (Future<String> one : done) all.append(one.get()).append(' ');
      return all.toString().trim();
    } finally {
      pool.shutdown();
    }
  }

  // One thread, a selector, many connections that it echoes; blocking channels
  // at the other end.
  static String channels(InetAddress address, int port) throws Exception {
    final int clients = 6, greetings = 2000, size = 8 << 20;
    Selector selector = Selector.open();
    ServerSocketChannel server = ServerSocketChannel.open();
    server.bind(new InetSocketAddress(address, port), 50);
    server.configureBlocking(false);
    server.register(selector, SelectionKey.OP_ACCEPT);
    CompletableFuture<Integer> ended = new CompletableFuture<>();
    Thread loop = new Thread(() -> {
      int left = clients;
      try {
        while (left > 0) {
          selector.select();
          for (var keys = selector.selectedKeys().iterator(); keys.hasNext(); ) {
            SelectionKey key = keys.next();
            keys.remove();
            if (key.isAcceptable()) {
              SocketChannel one = server.accept();
              if (one == null) continue;
              one.configureBlocking(false);
              one.register(selector, SelectionKey.OP_READ, ByteBuffer.allocateDirect(65536));
              continue;
            }
            SocketChannel one = (SocketChannel) key.channel();
            ByteBuffer buffer = (ByteBuffer) key.attachment();
            if (key.isReadable() && one.read(buffer) < 0) {
              one.close();
              --left;
              continue;
            }
            buffer.flip();
            one.write(buffer);
            buffer.compact();
            key.interestOps((buffer.hasRemaining() ? SelectionKey.OP_READ : 0)
                | (buffer.position() > 0 ? SelectionKey.OP_WRITE : 0));
          }
        }
        ended.complete(left);
      } catch (Exception e) {
        ended.completeExceptionally(e);
      }
    });
    loop.start();
    ExecutorService pool = Executors.newCachedThreadPool();
    List<Future<String>> done = new ArrayList<>();
    for (int i = 0; i < clients; ++i) {
      final int seed = i;
      done.add(pool.submit(() -> {
        byte[] bytes = new byte[size];
        new Random(seed).nextBytes(bytes);
        MessageDigest digest = MessageDigest.getInstance("SHA-256");
        try (SocketChannel one = SocketChannel.open(new InetSocketAddress(address, port))) {
          ByteBuffer word = ByteBuffer.allocate(32);
          for (int k = 0; k < greetings; ++k) {
            word.clear().putLong(k).position(0).limit(32);
            while (word.hasRemaining()) one.write(word);
            word.clear();
            while (word.hasRemaining()) one.read(word);
            if (word.getLong(0) != k) return "another word";
          }
          Future<?> writer = pool.submit(() -> {
            ByteBuffer from = ByteBuffer.wrap(bytes);
            while (from.hasRemaining()) one.write(from);
            return null;
          });
          ByteBuffer to = ByteBuffer.allocate(30000);
          for (int got = 0; got < size; ) {
            to.clear();
            int n = one.read(to);
            if (n < 0) return "ended after " + got;
            digest.update(to.array(), 0, n);
            got += n;
          }
          writer.get();
        }
        return hex(digest);
      }));
    }
    StringBuilder all = new StringBuilder();
    for (Future<String> one : done) all.append(one.get()).append(' ');
    pool.shutdown();
    all.append(ended.get());
    server.close();
    selector.close();
    return all.toString();
  }

  static String http(InetAddress address, int port) throws Exception {
    HttpServer server = HttpServer.create(new InetSocketAddress(address, port), 50);
    ExecutorService pool = Executors.newFixedThreadPool(4);
    server.setExecutor(pool);
    server.createContext("/", exchange -> {
      int size = Integer.parseInt(exchange.getRequestURI().getPath().substring(1));
      byte[] bytes = new byte[size];
      new Random(size).nextBytes(bytes);
      try (InputStream body = exchange.getRequestBody()) {
        body.readAllBytes();
      }
      exchange.sendResponseHeaders(200, size == 0 ? -1 : size);
      exchange.getResponseBody().write(bytes);
      exchange.close();
    });
    server.start();
    HttpClient client = HttpClient.newBuilder().version(HttpClient.Version.HTTP_1_1).build();
    MessageDigest digest = MessageDigest.getInstance("SHA-256");
    for (int round = 0; round < 30; ++round) {
      List<CompletableFuture<HttpResponse<byte[]>>> sent = new ArrayList<>();
      for (int i = 0; i < 10; ++i) {
        int size = i * 1000 * (round % 10 == 0 ? 100 : 1);
        sent.add(client.sendAsync(
            HttpRequest.newBuilder(URI.create(
                "http://" + address.getHostAddress() + ":" + port + "/" + size))
                .POST(HttpRequest.BodyPublishers.ofByteArray(new byte[2000])).build(),
            HttpResponse.BodyHandlers.ofByteArray()));
      }
      for (var one : sent) digest.update(one.get().body());
    }
    server.stop(0);
    pool.shutdown();
    return hex(digest);
  }

  public static void main(String[] words) throws Exception {
    InetAddress address = InetAddress.getByName(words[0]);
    int port = Integer.parseInt(words[1]);
    System.out.println("blocking " + blocking(address, port));
    System.out.println("channels " + channels(address, port + 1));
    System.out.println("http " + http(address, port + 2));
    System.exit(0);
  }
}
