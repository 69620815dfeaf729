import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpRequest.BodyPublishers;
import java.net.http.HttpResponse.BodyHandlers;
import java.util.UUID;

/** Posts bodies of several sizes with java.net.http's defaults, each twice, and prints a line for each answer. */
class Client {
    public static void main(String[] given) throws Exception {
        var client = HttpClient.newHttpClient(); // prefers HTTP/2: the first request of a connection asks for an upgrade
        for (int size : new int[] {0, 1024, 1024 * 1024}) {
            var key = UUID.randomUUID().toString();
            for (int times = 0; times < 2; times++) {
                var request = HttpRequest.newBuilder(URI.create(given[0]))
                        .header("Idempotency-Key", key)
                        .POST(BodyPublishers.ofByteArray(new byte[size]))
                        .build();
                var answer = client.send(request, BodyHandlers.ofString());
                var replayed = answer.headers().firstValue("idempotent-replayed").orElse("false");
                System.out.println(key + " " + size + " " + answer.statusCode() + " " + replayed + " " + answer.body());
            }
        }
    }
}
